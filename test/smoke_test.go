//go:build linux || windows

package test

import "testing"

// An enqueued command runs, and its exit code and output are stored.
func TestEchoCompletes(t *testing.T) {
	q := newQueue(t, "")
	q.start("--workers", "2")
	id := q.must("enqueue", "echo hello; echo warn >&2")
	if r := q.cli("wait", id); r.code != 0 {
		t.Fatalf("wait: exit code %d: %s", r.code, r.err)
	}
	j := q.show(id)
	if j.State != "completed" || j.ExitCode == nil || *j.ExitCode != 0 || j.Output != "hello\n" || j.Stderr != "warn\n" ||
		len(j.History) != 1 {
		t.Errorf("got %+v", j)
	}
}
