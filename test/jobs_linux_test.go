package test

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A stdin file must be a regular file. Reading a pipe without a writer would hang the job.
func TestStdinMustBeARegularFile(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	if err := unix.Mkfifo(q.path("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{q.path("fifo"), "/dev/null"} {
		j := w.waitEnded(w.enqueue(fields{"command": "cat", "stdin_file": file, "max_retries": 0}))
		if j.State != "dead" || deref(j.ExitCode) != 126 || !strings.Contains(j.Error, "stdin_file: ") ||
			!strings.Contains(j.Error, "not a regular file") {
			t.Errorf("%s: %+v, want 126", file, j)
		}
	}
}

// A job that was ended by a signal is retried and dies like a job that failed.
func TestSignalledJobIsRetriedLikeAFailure(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	j := w.waitEnded(w.enqueue(fields{"command": "kill -9 $$", "max_attempts": 3, "backoff_base": 0.03}))
	if j.State != "dead" || j.Reason != "signal" || j.ExitCode != nil || len(j.History) != 3 || j.Error == "" {
		t.Errorf("got %+v", j)
	}
}
