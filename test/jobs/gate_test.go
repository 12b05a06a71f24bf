//go:build linux || windows

package jobs

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// Jobs that name the same lock or rate share its limit. If users share the lock or rate (its name begins with
// @), the operator sets the limit, which also applies after a restart. A job cannot change that limit.
func TestSharedLockAndRateUseOperatorsLimit(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "4")
	refused := func(want string, args ...string) {
		t.Helper()
		if got := q.RunCLI(args...); got.ExitCode != 2 || !strings.Contains(got.Stderr, want) {
			t.Errorf("%q: got %+v, want %q", args, got, want)
		}
	}
	refused("gate set @db --lock N", "enqueue", "--lock", "@db:2", "true")
	refused("the shared key @api has no limit", "enqueue", "--rate-limit", "@api", "true")
	q.MustRunCLI("gate", "set", "@db", "--lock", "2")
	q.MustRunCLI("gate", "set", "@api", "--rate", "1/h")
	refused("the limit of the shared key @db is 2", "enqueue", "--lock", "@db:3", "true")
	refused(`key: "db" is not a shared key`, "gate", "set", "db", "--lock", "3")
	refused("is not a rate; write N/PERIOD", "gate", "set", "@db", "--rate", "3")
	for range 3 {
		q.MustRunCLI("enqueue", "--lock", "@db", "sleep 60")
	}
	q.MustRunCLI("enqueue", "--rate-limit", "@api", "--id", "first", "true")
	q.MustRunCLI("wait", "first")
	second := q.MustRunCLI("enqueue", "--rate-limit", "@api", "true")
	if got := q.MustRunCLI("why", second); !strings.Contains(got, "@api") {
		t.Errorf("why says %q", got)
	}
	q.KillService()
	q.StartService("--workers", "4")
	var gates []struct {
		Key  string `json:"key"`
		Kind string `json:"kind"`
		Rate string `json:"rate"`
		Most int    `json:"most"`
		Used int    `json:"used"`
		Jobs int    `json:"jobs"`
		Set  bool   `json:"set"`
	}
	if err := json.Unmarshal([]byte(q.MustRunCLI("gate", "list", "--json")), &gates); err != nil || len(gates) != 2 {
		t.Fatalf("%+v, %v", gates, err)
	}
	if g := gates[0]; g.Key != "@db" || g.Kind != "lock" || g.Most != 2 || g.Used != 2 || g.Jobs != 3 || !g.Set {
		t.Errorf("the lock is %+v", g)
	}
	if g := gates[1]; g.Key != "@api" || g.Kind != "rate" || g.Rate != "1/h" || g.Used != 1 || g.Jobs != 1 || !g.Set {
		t.Errorf("the rate is %+v", g)
	}
	q.MustRunCLI("gate", "set", "@api", "--rate", "2/h")
	q.MustRunCLI("wait", second)
	q.MustRunCLI("gate", "set", "@api", "--unset", "rate")
	refused("the shared key @api has no limit", "enqueue", "--rate-limit", "@api", "true")
	if got := q.RunCLI("gate", "set", "@db", "--unset", "lock"); got.ExitCode != 0 ||
		!strings.Contains(got.Stderr, "lock @db keeps its limit until the jobs that use it have finished (3 jobs)") {
		t.Errorf("gate set @db --unset lock: got %+v", got)
	}
}

// A queue with its own retention settings keeps its ended jobs and their outputs as these settings say. Other
// queues use the general settings.
func TestQueueRetentionAppliesToItsJobs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	if got := q.RunCLI("queue", "set", "bulk", "--retention", "0s"); got.ExitCode != 2 ||
		!strings.Contains(got.Stderr, "retention") {
		t.Errorf("queue set with retention 0s: got %+v", got)
	}
	q.MustRunCLI("queue", "set", "bulk", "--retention-max-jobs", "2", "--retention", "30d")
	q.MustRunCLI("queue", "set", "brief", "--retention", "1s")
	q.MustRunCLI("queue", "set", "loud", "--retention-output", "100")
	if got := q.MustRunCLI("queue", "list", "--json"); !strings.Contains(got,
		`"retention":"30d","retention_max_jobs":2`) &&
		!strings.Contains(got, `"retention":"720h","retention_max_jobs":2`) {
		t.Errorf("the list is %s", got)
	}
	for _, name := range []string{"bulk", "brief", "loud", "default"} {
		for range 4 {
			q.MustRunCLI("run", "-Q", name, "printf %060d 7")
		}
	}
	count := func(name string) int { return len(strings.Fields(q.MustRunCLI("list", "-Q", name, "-q"))) }
	checks := 0
	triggerCheck := func() { // the service checks the retention immediately when a setting changes
		checks++
		q.MustRunCLI("config", "set", "retention_events", fmt.Sprint(1+checks%6, "d"))
	}
	q.WaitUntil("the jobs above the limits are removed", 60*time.Second, func() bool {
		triggerCheck()
		return count("bulk") == 2 && count("brief") == 0
	})
	if n := count("default"); n != 4 {
		t.Errorf("%d jobs of the queue default remain, want 4", n)
	}
	q.WaitUntil("outputs are gone", 60*time.Second, func() bool {
		triggerCheck()
		printed := 0
		for _, id := range strings.Fields(q.MustRunCLI("list", "-Q", "loud", "-q")) {
			printed += len(q.RunCLI("logs", id).Stdout)
		}
		return printed == 60
	})
}
