//go:build linux || windows

package durability

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// delayStartsUntilNextService makes a runner receive the messages of a dead service late. A service sends START frames
// (messages that start jobs), the runner delays them, and the service is killed. The next service connects and starts
// the same jobs. Then delayStartsUntilNextService lets the runner read all frames. extraFailpoints lists additional
// failpoints (places in the program at which a test injects a delay or a crash).
func delayStartsUntilNextService(t *testing.T, jobCount int, extraFailpoints string) *testrig.LedgerQueue {
	t.Helper()
	r := testrig.NewLedgerQueue(t, "failpoint")
	r.ServiceEnv = []string{"QUEUECTL_FAILPOINTS=runner-start=wait:" + r.Path("go") + extraFailpoints}
	r.StartService("--workers", "0")
	a := &testrig.Requester{TargetQueue: r.Harness}
	for n := range jobCount {
		if err := r.EnqueueUntilAcknowledged(a, fmt.Sprintf("f%05d", n),
			testrig.LedgerJob{OutputBytes: 60 << 10, RunSeconds: 1}); err != nil {
			t.Fatal(err)
		}
	}
	// Request enough workers that the service claims all jobs in one transaction. If no job starts within 50
	// ms, the service returns the jobs to the queue and claims no more.
	r.MustRunCLI("worker", "scale", fmt.Sprint(2*jobCount))
	r.WaitUntil("all jobs are claimed", 5*time.Second, func() bool { return r.CountReservedJobs() == jobCount })
	// The service sends the START frames (messages that start jobs) immediately after the claim. The test cannot see when
	// they arrive, so it waits.
	time.Sleep(100 * time.Millisecond)
	r.KillService()
	r.StartService("--workers", fmt.Sprint(2*jobCount))
	r.WaitUntil("all jobs are claimed again", 5*time.Second, func() bool { return r.CountReservedJobs() == jobCount })
	if s := r.CountLedgerEntries("S"); len(s) > 0 {
		t.Fatalf("jobs whose START frames were held have started: %v", s)
	}
	r.WriteFile("go", "")
	return r
}

// A runner may read a START frame of a dead service after the next service has connected. It rejects the frame
// by its fence (the number of the job's lease), so the job runs once. Without this check, the job would run
// twice.
func TestFenceRejectsStaleStarts(t *testing.T) {
	const jobs = 4
	t.Run("with the fence", func(t *testing.T) {
		r := delayStartsUntilNextService(t, jobs, "")
		r.WaitUntil("all jobs ended", 20*time.Second, func() bool {
			return r.QueryDatabaseInt(`SELECT count(*) FROM jobs WHERE state < 6`) == 0
		})
		r.CheckNoOverlappingAttempts()
		starts := r.CountLedgerEntries("S")
		for tag, want := range r.AcknowledgedJobs {
			if j := r.ShowJob(want.ID); starts[tag] != 1 || j.State != "completed" || j.AttemptCount != 1 ||
				len(j.AttemptHistory) != 1 {
				t.Errorf("%s started %d times: %+v", tag, starts[tag], j)
			}
		}
	})
	t.Run("without the fence", func(t *testing.T) {
		if !testrig.SentDataSurvivesClose {
			return // on this system, a frame (message) is lost when its sender dies
		}
		r := delayStartsUntilNextService(t, jobs, ",nofence")
		r.WaitUntil("the saboteur was caught", 10*time.Second, func() bool {
			for _, n := range r.CountLedgerEntries("S") {
				if n > 1 {
					return true
				}
			}
			return false
		})
	})
}

// If a request handler panics, the client gets an error with the code "internal". The connection
// and the service continue to work.
func TestHandlerPanicReturnsInternalError(t *testing.T) {
	q := testrig.NewHarness(t, "failpoint")
	q.ServiceEnv = []string{"QUEUECTL_FAILPOINTS=request=panic:1"}
	q.StartService("--workers", "1")
	w, other := q.DialService(), q.DialService()
	if a := w.Call("status", nil); a.Error == nil || a.Error.Data.Code != "internal" || a.Error.Code != -32603 {
		t.Errorf("the reply of a handler that panics: %+v, want the code internal", a)
	}
	for _, c := range []*testrig.ServiceConn{w, other} {
		a := c.Call("enqueue", map[string]any{"command": "true"})
		var got struct{ ID string }
		if a.Error != nil || json.Unmarshal(a.Result, &got) != nil {
			t.Fatalf("enqueue after the panic: %+v", a)
		}
		if r := q.RunCLI("wait", got.ID); r.ExitCode != 0 {
			t.Errorf("wait: exit code %d: %s", r.ExitCode, r.Stderr)
		}
	}
}

// If the goroutine that writes to the database panics, the service stops immediately. All acknowledged jobs
// exist after the next start.
func TestPanicInWriterStopsTheService(t *testing.T) {
	failServiceAtEachCommit(t, "panic", func(r *testrig.LedgerQueue) {
		if err := <-r.ServiceExit; err == nil {
			t.Error("the service ended with exit code 0")
		}
		r.ServiceCmd = nil
	})
}

// If the service or the client dies after the commit of an enqueue, the client gets no reply. If the client
// repeats the request with the same idempotency key, it gets the stored job, and no second job is stored.
func TestRepeatedIdempotencyKeyFindsStoredJob(t *testing.T) {
	failServiceAtEachCommit(t, "kill", func(r *testrig.LedgerQueue) {
		if !r.WaitForFailpointKill(5 * time.Second) {
			t.Error("the service was not killed")
		}
	})
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "0")
	const clients = 20
	var closed []*testrig.ServiceConn
	for n := range clients {
		w := q.DialService()
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"method":"enqueue","params":{"command":"true","key":"k%d"}}`+"\n", n)
		closed = append(closed, w)
	}
	q.WaitUntil("the jobs are stored", 5*time.Second, func() bool {
		return q.QueryDatabaseInt(`SELECT count(*) FROM jobs`) == clients
	})
	for _, w := range closed {
		w.Close() // close the connection without reading the reply
	}
	w := q.DialService()
	seen := map[string]bool{}
	for n := range clients {
		a := w.Call("enqueue", map[string]any{"command": "true", "key": fmt.Sprintf("k%d", n)})
		var got struct {
			ID        string
			Duplicate bool
		}
		if a.Error != nil || json.Unmarshal(a.Result, &got) != nil || !got.Duplicate || seen[got.ID] {
			t.Errorf("repeated request with key %d: %+v", n, a)
		}
		seen[got.ID] = true
	}
}

// failServiceAtEachCommit makes the service fail at its n-th commit, for several n from 1 on, while a client enqueues.
// Each time, it calls waitForServiceEnd, which must wait until the service has ended, and then starts the service
// again. Every acknowledged job must exist. A job that exists without an acknowledgement must be found by a request
// with its idempotency key.
func failServiceAtEachCommit(t *testing.T, failpoint string, waitForServiceEnd func(*testrig.LedgerQueue)) {
	t.Helper()
	r := testrig.NewLedgerQueue(t, "failpoint")
	acked, found := 0, 0
	// Try several n, because the service also commits its own records, and such a commit stores no job.
	for n := 1; n <= 8 || found == 0 && n <= 40; n++ {
		r.ServiceEnv = []string{fmt.Sprintf("QUEUECTL_FAILPOINTS=commit=%s:%d", failpoint, n)}
		ready := r.TryStartService("--workers", "0") == nil
		params := r.EnqueueParams("k00000", testrig.LedgerJob{OutputBytes: 10})
		params["key"] = fmt.Sprint("first ", n)
		for a, running := (&testrig.Requester{TargetQueue: r.Harness}), ready; running; {
			got, err := a.Request("enqueue", params, nil)
			if got.Error != nil {
				t.Fatalf("commit %d: answered with %+v", n, *got.Error)
			}
			if running = err == nil; !running {
				t.Logf("commit %d, after %d were acknowledged: %v", n, acked, err)
			} else {
				acked++
				params["key"] = fmt.Sprint(n, " after ", acked)
			}
		}
		waitForServiceEnd(r)
		r.ServiceEnv = nil
		r.StartService("--workers", "0")
		stored := r.QueryDatabaseInt(`SELECT count(*) FROM jobs`)
		var got struct{ Duplicate bool }
		if err := json.Unmarshal((&testrig.Requester{TargetQueue: r.Harness}).MustRequest("enqueue", params),
			&got); err != nil {
			t.Fatal(err)
		}
		if got.Duplicate {
			found++
			stored--
		}
		if acked != stored {
			t.Errorf("commit %d: %d jobs are stored before the last one, but %d were acknowledged", n, stored, acked)
		}
		acked++
		r.KillService()
	}
	if found == 0 {
		t.Error("no reply was lost after its commit, so the test proves nothing")
	}
}
