package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// After the first Ctrl-C, `queuectl run` and `queuectl wait` leave the job running and say how to
// follow it again. A second Ctrl-C cancels the job, and so does the first one with --cancel-on-exit.
// The exit code is always 130.
func TestCtrlCDetachesRunAndWait(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "4")
	w := q.DialService()
	const hint = "press Ctrl-C again to cancel it"
	for i, c := range []struct {
		verb     string
		flags    []string
		times    int
		state    string
		wantText string
	}{
		{"run", nil, 1, "processing", "queuectl attach job0"}, {"run", nil, 2, "cancelled", "job job1 cancelled"},
		{"run", []string{"--cancel-on-exit"}, 1, "cancelled", "job job2 cancelled"}, {"wait", nil, 1, "processing", ""},
	} {
		f := startFollower(w, fmt.Sprint("job", i), c.verb, c.flags...)
		f.Process.Signal(os.Interrupt)
		if c.times > 1 {
			w.WaitUntil("the client asks for a second Ctrl-C", 20*time.Second, func() bool {
				return strings.Contains(f.stderr.String(), hint)
			})
			f.Process.Signal(os.Interrupt)
		}
		if stderr := f.waitExit(t, 130); !strings.Contains(stderr, c.wantText) {
			t.Errorf("%s %v printed %q, want %q", c.verb, c.flags, stderr, c.wantText)
		}
		if j := w.ShowJob(fmt.Sprint("job", i)); j.State != c.state {
			t.Errorf("after %s %v the job is %s, want %s", c.verb, c.flags, j.State, c.state)
		}
	}
	q.MustRunCLI("cancel", "job0", "job3")
}

// publicPathEnvAssignment sets PATH to directories that every user may search. With another PATH, a missing program
// could be reported as inaccessible.
const publicPathEnvAssignment = "PATH=/usr/bin:/bin"

// killedJobExitCode is the exit code of a job that was killed, and killedJobMessageText is a part of what
// `queuectl run` prints about it.
const killedJobExitCode, killedJobMessageText = 137, "signal 9"

// platformJobEndCases lists ways in which jobs can end only on Linux.
var platformJobEndCases = []jobEndCase{
	{"--timeout=0.1 -- sh -c 'trap \"exit 0\" TERM; sleep 60 & wait'", 124, "timed_out", "timed out"},
	{"--timeout=0.1 --kill-after=0.1 -- sh -c 'trap \"\" TERM; sleep 60 & wait'", 124, "timed_out", "timed out"},
	{"kill -HUP $$", 129, "signal", "signal 1"}, {"kill -INT $$", 130, "signal", "signal 2"},
	{"kill -KILL $$", 137, "signal", "signal 9"},
	{"kill -SEGV $$", 139, "signal", "signal 11"}, {"kill -TERM $$", 143, "signal", "signal 15"},
	{"kill -64 $$", 192, "signal", "signal 64"},
}
