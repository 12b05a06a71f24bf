package jobs

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/testrig"
)

// A stdin file must be a regular file. Reading a pipe without a writer would hang the job.
func TestStdinMustBeARegularFile(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	if err := unix.Mkfifo(q.Path("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{q.Path("fifo"), "/dev/null"} {
		j := w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "cat", "stdin_file": file, "max_retries": 0}))
		if j.State != "dead" || testrig.ValueOrMinusOne(j.ExitCode) != 126 || !strings.Contains(j.Error, "stdin_file: ") ||
			!strings.Contains(j.Error, "not a regular file") {
			t.Errorf("%s: %+v, want 126", file, j)
		}
	}
}

// If a signal ends a job, the job is retried like a job that fails, and is dead after its last attempt.
func TestSignalledJobIsRetriedLikeAFailure(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	j := w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "kill -9 $$", "max_attempts": 3, "backoff_base": 0.03}))
	if j.State != "dead" || j.Reason != "signal" || j.ExitCode != nil || len(j.AttemptHistory) != 3 || j.Error == "" {
		t.Errorf("a job that always ends by SIGKILL: %+v", j)
	}
}
