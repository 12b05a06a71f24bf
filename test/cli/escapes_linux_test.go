package cli

import (
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// If queuectl prints a job's command or another text of the job inside its own output, it escapes invisible
// characters. In a pipe, it also escapes colours, so that no character is lost. `queuectl logs` prints the
// output of a job unchanged.
func TestInvisibleJobCharactersAreEscaped(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	const hidden = "z\u200bz\u2060\x1b[35mz"
	id := w.Enqueue(testrig.JSONFields{"id": "hides", "command": ": '" + hidden + "'; printf '" + hidden + "'; exit 3",
		"max_retries": 0, "labels": testrig.JSONFields{"l": hidden}})
	w.WaitJobEnded(id)
	const inPipe = `z\u200bz\u2060\x1b[35mz`
	for _, args := range [][]string{{"status"}, {"show", id}, {"list"}, {"list", "--columns", "id,labels"},
		{"dlq", "list"}} {
		r := q.RunCLI(args...)
		if strings.ContainsAny(r.Stdout, "\u200b\u2060\x1b") || !strings.Contains(r.Stdout, inPipe) {
			t.Errorf("%q in a pipe: got %q, want %q in it", args, r.Stdout, inPipe)
		}
		r = q.RunCLIOnTerminal(args...)
		if strings.ContainsAny(r.Stdout, "\u200b\u2060") || !strings.Contains(r.Stdout, `z\u200bz\u2060`) {
			t.Errorf("%q on a terminal: got %q, want the invisible characters escaped", args, r.Stdout)
		}
	}
	if r := q.RunCLI("logs", id); r.Stdout != hidden {
		t.Errorf("logs in a pipe: got %q, want %q", r.Stdout, hidden)
	}
}
