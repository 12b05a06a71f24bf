//go:build linux || windows

package test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// No user has more than max_running_per_user jobs running, even if workers are idle. This also holds after a
// restart and a crash. When the limit is removed, more jobs start immediately.
func TestRunningPerUser(t *testing.T) {
	q := startQueue(t, "--workers", "4")
	q.must("config", "set", "max_running_per_user", "2")
	most := func(n int) (most int) {
		t.Helper()
		os.Remove(q.path("log"))
		w := q.dial()
		var ids []string
		for range n {
			ids = append(ids, w.enqueue(fields{"command": fmt.Sprintf("echo + >>%s; sleep %.1f; echo - >>%[1]s", q.path("log"),
				0.1*timeoutFactor)}))
		}
		q.must(append([]string{"wait", "--timeout", "60"}, ids...)...)
		now := 0
		for line := range strings.Lines(q.readFile("log")) {
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
		t.Errorf("%d ran at once, want 2", got)
	}
	q.stop()
	q.start("--workers", "4")
	if got := most(8); got != 2 {
		t.Errorf("%d ran at once after a new start, want 2", got)
	}

	var ids []string
	for range 4 {
		ids = append(ids, q.must("enqueue", "-q", "while [ ! -e "+q.path("go")+" ]; do sleep 0.02; done"))
	}
	run := func() (n int) {
		for _, id := range ids {
			if q.show(id).State == "processing" {
				n++
			}
		}
		return n
	}
	q.waitUntil("two run", 20*time.Second, func() bool { return run() == 2 })
	q.kill()
	q.start("--workers", "4")
	later := q.must("enqueue", "-q", "true")
	if n := run(); n != 2 || q.show(ids[2]).State != "pending" || q.show(later).State != "pending" {
		t.Errorf("%d run after a crash; others are %s and %s", n, q.show(ids[2]).State, q.show(later).State)
	}
	q.must("cancel", ids[3])
	q.must("config", "set", "max_running_per_user", "0")
	q.waitUntil("the others run", 20*time.Second, func() bool { return run() == 3 })
	q.must("wait", later, "--timeout", "30")
	if err := os.WriteFile(q.path("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	q.must("wait", "--timeout", "30", ids[0], ids[1], ids[2])
	if got := most(8); got < 3 {
		t.Errorf("%d ran at once without a bound, want more than 2", got)
	}
	if out := q.must("doctor", "--verify"); strings.Contains(out, "failure") {
		t.Error(out)
	}
}

// No user has more than max_pending_per_user jobs waiting. A request that would exceed the limit fails with
// code "full" and names the setting, and none of its jobs is stored.
func TestPendingPerUser(t *testing.T) {
	q := startQueue(t, "--workers", "0")
	q.must("config", "set", "max-pending-per-user", "3")
	q.must("enqueue", "true")
	q.must("enqueue", "true")
	for _, args := range [][]string{{"enqueue", "--file", "-"}, {"enqueue", "--file", "-", "--json"}} {
		if r := q.cliWithInput(`{"command":"true"}`+"\n"+`{"command":"true"}`+"\n", args...); r.code != 5 ||
			!strings.Contains(r.err, "max_pending_per_user is 3") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	third := q.must("enqueue", "-q", "true")
	if r := q.cli("enqueue", "true"); r.code != 5 ||
		!strings.Contains(r.err, "3 of their jobs are waiting, and the setting max_pending_per_user is 3") {
		t.Errorf("one too many: %+v", r)
	}
	if a := q.dial().call("enqueue", map[string]any{"command": "true"}); a.Error == nil || a.Error.Data.Code != "full" ||
		a.Error.Code != -32005 {
		t.Errorf("on the wire: %+v", a)
	}
	q.must("cancel", third)
	q.must("enqueue", "true")
	if r := q.cli("retry", third); r.code != 5 || !strings.Contains(r.err, "max_pending_per_user is 3") {
		t.Errorf("one too many by retry: %+v", r)
	}
	q.must("config", "unset", "max_pending_per_user")
	q.must("enqueue", "true")
	if got := strings.Count(q.must("list", "-q", "-s", "waiting"), "\n") + 1; got != 4 {
		t.Errorf("%d jobs wait, want 4", got)
	}
}
