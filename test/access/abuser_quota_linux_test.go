package access

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// abuseQuotaMiB is the value of max_bytes_per_user during the attacks, in MiB.
const abuseQuotaMiB = 128

// fillByteQuota fills the byte quota of its user as fast as possible. It enqueues and cancels large jobs, and runs
// jobs that print large outputs. One of these jobs fails many times, and each attempt prints an output.
func (a *abuser) fillByteQuota(ctx context.Context, tally *requestTally) {
	const printingSpec = `{"argv":["nice","-n","19","sh","-c","head -c 1000000 /dev/zero; exit 1"],` +
		`"output_limit":1048576,"max_attempts":1000,"backoff_max":"1ms","cwd":"/"}`
	spec := largeSpec(delayedSpecFields)
	var retried sync.Once
	a.keepConnections(ctx, tally, 4, func(c *rawClient) {
		retried.Do(func() { a.sendRequest(c, tally, "enqueue", printingSpec) })
		for a.waitForCPUShare(ctx) {
			result, ok := a.sendRequest(c, tally, "enqueue", spec)
			if !ok {
				return
			}
			var got struct{ ID string }
			json.Unmarshal(result, &got)
			a.sendRequest(c, tally, "cancel", fmt.Sprintf(`{"id":%q}`, got.ID))
			a.sendRequest(c, tally, "enqueue", lowPrioritySpec("head -c 1000000 /dev/zero", `,"output_limit":1048576`))
		}
	})
}

// runQuotaAttack lets the attackers fill a small byte quota. It checks that no attacker exceeds the quota, and
// that the service still serves the third user.
func runQuotaAttack(q *testrig.Harness, t *testing.T, program string) {
	t.Helper()
	const duration, smallQuotaMiB = 4 * time.Second, 8
	q.MustRunCLI("config", "set", "access.submit", "daemon news uucp bin sys")
	q.MustRunCLI("config", "set", "max_bytes_per_user", fmt.Sprintf("%dMiB", smallQuotaMiB))
	m := serviceMeasurement{q: q, servicePID: q.ServiceCmd.Process.Pid}
	m.measureFor(t, duration, func(ctx context.Context) {
		var wg sync.WaitGroup
		for _, p := range attackingUsers {
			wg.Go(func() { runAttacker(q, ctx, program, p, duration, "fill-quota") })
		}
		wg.Wait()
	})
	t.Logf("while they fill a quota: %s", &m)
	if len(m.runTimes) == 0 || len(m.refusalErrs) > 0 {
		t.Errorf("while others filled their quota, %d jobs of the third user ended, and these requests were refused: %v",
			len(m.runTimes), m.refusalErrs)
	}
	for _, p := range attackingUsers {
		checkByteQuota(q, t, p, smallQuotaMiB<<20)
		if !strings.Contains(q.MustRunCLI("list", "--user", p.Name, "--json"), `"input_removed"`) {
			t.Errorf("%s did not fill the quota", p.Name)
		}
	}
	checkDatabaseSize(q, t, 2*smallQuotaMiB<<20)
	for _, p := range attackingUsers {
		q.RunCLI("cancel", "--user", p.Name, "--yes") // these jobs would affect later measurements
	}
	q.MustRunCLI("config", "set", "max_bytes_per_user", fmt.Sprintf("%dMiB", abuseQuotaMiB))
}

// allowedQuotaExcessBytes is the number of bytes by which a user's jobs may exceed the quota in this test. The
// service keeps the records of a job's last ten attempts, with their error messages, even above the
// quota (see docs/users.md).
const allowedQuotaExcessBytes = 256 << 10

// checkByteQuota checks that the jobs of a user use at most maxBytes, the current quota. Do not call it after the
// quota was set to less than the bytes in use.
func checkByteQuota(q *testrig.Harness, t *testing.T, p testrig.Person, maxBytes int64) {
	t.Helper()
	conn, err := testrig.ConnectAs(q.StateDir, p)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := newRawClient(conn)
	var usage struct {
		Bytes    int64
		MaxBytes int64 `json:"max_bytes"`
	}
	result, err := c.call("whoami", `{}`)
	if err == nil {
		err = json.Unmarshal(result, &usage)
	}
	if err != nil || usage.MaxBytes != maxBytes || usage.Bytes > maxBytes+allowedQuotaExcessBytes {
		t.Errorf("whoami of %s: %s, %v; want at most %d bytes in use, and %d for records", p.Name, result, err, maxBytes,
			allowedQuotaExcessBytes)
	}
	t.Logf("the jobs of %s hold %d of %d MB", p.Name, usage.Bytes>>20, usage.MaxBytes>>20)
}

// checkDatabaseSize checks that the database file has at most twice totalQuotaBytes (the sum of the attackers' quotas),
// plus 32 MiB for everything else.
func checkDatabaseSize(q *testrig.Harness, t *testing.T, totalQuotaBytes int64) {
	t.Helper()
	var st struct {
		Bytes int64 `json:"database_bytes"`
	}
	if err := json.Unmarshal([]byte(q.MustRunCLI("status", "--json")), &st); err != nil {
		t.Fatal(err)
	}
	t.Logf("the database has %d MB", st.Bytes>>20)
	if maxBytes := 2*totalQuotaBytes + 32<<20; st.Bytes > maxBytes {
		t.Errorf("the database has %d MB, want at most %d", st.Bytes>>20, maxBytes>>20)
	}
}
