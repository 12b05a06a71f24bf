package test

import (
	"strings"
	"testing"
)

// If queuectl prints a text of a job within its own text, it escapes invisible characters, both on a terminal
// and in a pipe. In a pipe, colours are escaped too, so that nothing is dropped. logs prints the output of
// the job unchanged.
func TestJobsHideNoCharacters(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	const hidden = "z\u200bz\u2060\x1b[35mz"
	id := w.enqueue(fields{"id": "hides", "command": ": '" + hidden + "'; printf '" + hidden + "'; exit 3",
		"max_retries": 0, "labels": fields{"l": hidden}})
	w.waitEnded(id)
	const inPipe = `z\u200bz\u2060\x1b[35mz`
	for _, args := range [][]string{{"status"}, {"show", id}, {"list"}, {"list", "--columns", "id,labels"},
		{"dlq", "list"}} {
		r := q.cli(args...)
		if strings.ContainsAny(r.out, "\u200b\u2060\x1b") || !strings.Contains(r.out, inPipe) {
			t.Errorf("%q in a pipe: got %q, want %q in it", args, r.out, inPipe)
		}
		r = q.runOnScreen(args...)
		if strings.ContainsAny(r.out, "\u200b\u2060") || !strings.Contains(r.out, `z\u200bz\u2060`) {
			t.Errorf("%q on a terminal: got %q, want the invisible characters escaped", args, r.out)
		}
	}
	if r := q.cli("logs", id); r.out != hidden {
		t.Errorf("logs in a pipe: got %q, want %q", r.out, hidden)
	}
}
