package cluster

import (
	"slices"
	"strings"
	"testing"
)

// If the service of a node does not start at boot, a command that makes a job start at a much later time prints one
// warning about this.
func TestNodeWarnsOnceOfMissingBootStart(t *testing.T) {
	_, nodes := startNodes(t, "a", "b")
	q := nodes[0]
	const note = "this service does not start at boot"
	for _, words := range [][]string{
		{"enqueue", "--id", "late", "--in", "2h", "true"}, {"enqueue", "--in", "2h", "--", "true", ":::", "1", "2"},
		{"edit", "late", "--at", "tomorrow 3pm"},
		{"edit", "--all", "--yes", "--delay", "3h"}, {"edit", "late", "--at", "tomorrow 3pm", "--jsonl"},
		{"schedule", "add", "nightly", "0 3 * * *", "true"},
	} {
		want := 1
		// With --jsonl the note is part of the JSON on stdout, so stderr has none.
		if slices.Contains(words, "--jsonl") {
			want = 0
		}
		got := q.RunCLI(words...)
		if got.ExitCode != 0 || strings.Count(got.Stderr, note) != want || strings.Count(got.Stdout, note) != 1-want {
			t.Errorf("%q: %+v, want the note once", words, got)
		}
	}
	if got := q.RunCLI("edit", "late", "--delay", "10m"); got.ExitCode != 0 || got.Stderr != "" {
		t.Errorf("edit to a short delay: %+v, want no note", got)
	}
}
