//go:build linux || windows

package access

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// A user has at most max_running_per_user running jobs, even if workers are idle. The setting survives a
// restart and a crash. When it is removed, more jobs start immediately.
func TestMaxRunningPerUserLimitsRunningJobs(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "4")
	q.MustRunCLI("config", "set", "max_running_per_user", "2")
	most := func(n int) (most int) {
		t.Helper()
		os.Remove(q.Path("log"))
		w := q.DialService()
		var ids []string
		for range n {
			ids = append(ids, w.Enqueue(testrig.JSONFields{"command": fmt.Sprintf("echo + >>%s; sleep %.1f; echo - >>%[1]s",
				q.Path("log"),
				0.1*testrig.TimeoutFactor)}))
		}
		q.MustRunCLI(append([]string{"wait", "--timeout", "60"}, ids...)...)
		now := 0
		for line := range strings.Lines(q.ReadFile("log")) {
			if line == "+\n" {
				now++
			} else {
				now--
			}
			most = max(most, now)
		}
		return most
	}
	if got := most(12); got != 2 {
		t.Errorf("%d jobs ran concurrently, want 2", got)
	}
	q.StopService()
	q.StartService("--workers", "4")
	if got := most(8); got != 2 {
		t.Errorf("%d jobs ran concurrently after a restart, want 2", got)
	}

	var ids []string
	for range 4 {
		ids = append(ids, q.MustRunCLI("enqueue", "-q", "while [ ! -e "+q.Path("go")+" ]; do sleep 0.02; done"))
	}
	run := func() (n int) {
		for _, id := range ids {
			if q.ShowJob(id).State == "processing" {
				n++
			}
		}
		return n
	}
	q.WaitUntil("two run", 20*time.Second, func() bool { return run() == 2 })
	q.KillService()
	q.StartService("--workers", "4")
	later := q.MustRunCLI("enqueue", "-q", "true")
	if n := run(); n != 2 || q.ShowJob(ids[2]).State != "pending" || q.ShowJob(later).State != "pending" {
		t.Errorf("%d jobs run after a crash; two other jobs are %s and %s", n, q.ShowJob(ids[2]).State,
			q.ShowJob(later).State)
	}
	q.MustRunCLI("cancel", ids[3])
	q.MustRunCLI("config", "set", "max_running_per_user", "0")
	q.WaitUntil("the others run", 20*time.Second, func() bool { return run() == 3 })
	q.MustRunCLI("wait", later, "--timeout", "30")
	if err := os.WriteFile(q.Path("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	q.MustRunCLI("wait", "--timeout", "30", ids[0], ids[1], ids[2])
	if got := most(8); got < 3 {
		t.Errorf("%d jobs ran concurrently without a quota, want more than 2", got)
	}
	if out := q.MustRunCLI("doctor", "--verify"); strings.Contains(out, "failure") {
		t.Error(out)
	}
}

// A user has at most max_pending_per_user waiting jobs. A request that would exceed the limit fails
// with the code "full", names the setting, and stores no job.
func TestMaxPendingPerUserLimitsWaitingJobs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustRunCLI("config", "set", "max-pending-per-user", "3")
	q.MustRunCLI("enqueue", "true")
	q.MustRunCLI("enqueue", "true")
	for _, args := range [][]string{{"enqueue", "--file", "-"}, {"enqueue", "--file", "-", "--json"}} {
		if r := q.RunCLIWithInput(`{"command":"true"}`+"\n"+`{"command":"true"}`+"\n", args...); r.ExitCode != 5 ||
			!strings.Contains(r.Stderr, "max_pending_per_user is 3") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	third := q.MustRunCLI("enqueue", "-q", "true")
	if r := q.RunCLI("enqueue", "true"); r.ExitCode != 5 ||
		!strings.Contains(r.Stderr, "3 of their jobs are waiting, and the setting max_pending_per_user is 3") {
		t.Errorf("enqueue of one job too many: %+v", r)
	}
	if a := q.DialService().Call("enqueue", map[string]any{"command": "true"}); a.Error == nil ||
		a.Error.Data.Code != "full" ||
		a.Error.Code != -32005 {
		t.Errorf("enqueue over the socket of one job too many: %+v", a)
	}
	q.MustRunCLI("cancel", third)
	q.MustRunCLI("enqueue", "true")
	if r := q.RunCLI("retry", third); r.ExitCode != 5 || !strings.Contains(r.Stderr, "max_pending_per_user is 3") {
		t.Errorf("retry of one job too many: %+v", r)
	}
	q.MustRunCLI("config", "unset", "max_pending_per_user")
	q.MustRunCLI("enqueue", "true")
	if got := strings.Count(q.MustRunCLI("list", "-q", "-s", "waiting"), "\n") + 1; got != 4 {
		t.Errorf("%d jobs wait, want 4", got)
	}
}
