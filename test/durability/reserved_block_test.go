//go:build linux || windows

package durability

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// The service sends many jobs together (a block) to a runner before workers are free. If jobs of a block are cancelled
// or expire before they start, they do not run. If the workers are stopped or the service is killed before the jobs
// start, the jobs run once, later.
func TestInterruptedPrefetchedJobsRunAtMostOnce(t *testing.T) {
	testrig.SkipIfShort(t)
	counts := map[string]int{}
	// Each function returns the number of reserved jobs that it interrupted.
	for name, hit := range map[string]func(*reservedJobBlock) int{
		"cancel": (*reservedJobBlock).cancelReservedJobs, "stop": (*reservedJobBlock).stopWorkers,
		"expiry":         (*reservedJobBlock).expireReservedJobs,
		"kill":           (*reservedJobBlock).killServiceBeforeStartFrames,
		"kill in runner": (*reservedJobBlock).killServiceWhileJobsWait,
	} {
		t.Run(name, func(t *testing.T) {
			// A block has 32 to 64 jobs. On a busy machine, most of them may start before the test interrupts
			// the block.
			const enough = 24
			for try := 0; try < 5 && counts[name] < enough; try++ {
				b := newReservedJobBlock(t)
				counts[name] = hit(b)
				b.CheckNoOverlappingAttempts()
			}
			if counts[name] < enough {
				t.Errorf("%d reserved jobs were interrupted, want at least %d", counts[name], enough)
			}
		})
	}
	t.Logf("reserved jobs that were interrupted: %v", counts)
}

// reservedJobBlock contains a queue whose runner has received a block of jobs but not started them. The runner
// delays every START frame (the message that starts a job) until the file "go" exists.
type reservedJobBlock struct {
	*testrig.LedgerQueue
	*testrig.Requester
	jobIDs           []string
	tagsByJobID      map[string]string // tags of the jobs, by job id
	enqueuedJobCount int               // number of enqueued jobs, including those of too small blocks
	reservedJobCount int               // number of jobs in the runner that had not started when the block was ready
}

func newReservedJobBlock(t *testing.T) *reservedJobBlock {
	b := &reservedJobBlock{LedgerQueue: testrig.NewLedgerQueue(t, "failpoint"), tagsByJobID: map[string]string{}}
	b.Requester = &testrig.Requester{TargetQueue: b.Harness}
	b.ServiceEnv = []string{"QUEUECTL_FAILPOINTS=runner-start=wait:" + b.Path("go") + "," + testrig.PrefetchFailpoints}
	b.releaseStartFrames()
	b.StartService("--workers", "4")
	return b
}

// releaseStartFrames lets the runner read all START frames (messages that start jobs).
func (b *reservedJobBlock) releaseStartFrames() { b.WriteFile("go", "") }

// reserveJobs enqueues the given jobs and 64 more, whose parameters editJobParams may change. If delayStartFrames is
// true, the runner delays the START frames (messages) that start these jobs. reserveJobs repeats this until at least 32
// jobs are reserved: the runner has received but not started them.
func (b *reservedJobBlock) reserveJobs(delayStartFrames bool, editJobParams func(map[string]any),
	firstJobs ...map[string]any) {
	b.Helper()
	for range 5 {
		b.WarmUpPrefetch(4)
		b.jobIDs = nil
		if delayStartFrames {
			os.Remove(filepath.Join(b.StateDir, "go"))
		}
		jobs := firstJobs
		for range 64 {
			b.enqueuedJobCount++
			jobs = append(jobs, b.EnqueueParams(fmt.Sprintf("b%05d", b.enqueuedJobCount), testrig.LedgerJob{OutputBytes: 10}))
			editJobParams(jobs[len(jobs)-1])
		}
		all := b.EnqueueBatch(jobs...)
		for n, id := range all[len(firstJobs):] {
			b.jobIDs = append(b.jobIDs, id)
			b.tagsByJobID[id] = jobs[len(firstJobs)+n]["argv"].([]string)[2]
		}
		for range 20 { // one commit reserves the whole block, so a few checks are enough
			if b.reservedJobCount = b.CountReservedJobs(); b.reservedJobCount >= 32 {
				return
			}
		}
		b.releaseStartFrames() // the machine was slow and the block is too small: run its jobs and try again
	}
	b.Fatalf("the largest block had %d jobs, want at least 32", b.reservedJobCount)
}

// leaveParamsUnchanged changes no parameters. It is an argument for the method reserveJobs.
func leaveParamsUnchanged(map[string]any) {}

// checkJobsRanOnce checks that every job of the block has run once. It returns the number of jobs that were
// reserved.
func (b *reservedJobBlock) checkJobsRanOnce() int {
	b.Helper()
	b.WaitUntil("the block ended", 30*time.Second, func() bool {
		return b.QueryDatabaseInt(`SELECT count(*) FROM jobs WHERE state < 6`) == 0
	})
	starts := b.CountLedgerEntries("S")
	for _, id := range b.jobIDs {
		if j := b.ShowJob(id); starts[b.tagsByJobID[id]] != 1 || j.State != "completed" || j.AttemptCount != 1 ||
			len(j.AttemptHistory) != 1 {
			b.Errorf("%s started %d times: %+v", id, starts[b.tagsByJobID[id]], j)
		}
	}
	return b.reservedJobCount
}

// cancelReservedJobs cancels the jobs of a block. It returns the number of reserved jobs that never started.
func (b *reservedJobBlock) cancelReservedJobs() int {
	b.Helper()
	b.reserveJobs(true, leaveParamsUnchanged)
	w := b.DialService()
	for n, id := range b.jobIDs {
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%d,"method":"cancel","params":{"ids":[%q]}}`+"\n", n, id)
	}
	b.Requester.MustRequest("status", nil)
	b.releaseStartFrames()
	verdicts := make([]string, len(b.jobIDs))
	for range b.jobIDs {
		a, err := w.ReadMessage()
		n, bad := strconv.Atoi(string(a.ID))
		if err != nil || bad != nil {
			b.Fatal(err, bad)
		}
		verdicts[n] = string(a.Result)
	}
	starts, neverStarted := b.CountLedgerEntries("S"), 0
	for n, id := range b.jobIDs {
		j, startCount := b.ShowJob(id), starts[b.tagsByJobID[id]]
		done := strings.Contains(verdicts[n], `"done":["`)
		switch {
		case done && j.State == "cancelled" && startCount == 0 && j.AttemptCount == 0 && len(j.AttemptHistory) == 0:
			neverStarted++
		case done && j.State == "cancelled" && startCount <= 1 && len(j.AttemptHistory) == 1: // the job had already started
		case !done && strings.Contains(verdicts[n], "wrong_state") && j.State == "completed" && startCount == 1:
		default:
			b.Errorf("cancel %s: %s, started %d times: %+v", id, verdicts[n], startCount, j)
		}
	}
	return min(neverStarted, b.reservedJobCount)
}

// stopWorkers stops the workers while the runner has received a block of jobs but not started them. It
// returns the number of reserved jobs that returned to the queue.
func (b *reservedJobBlock) stopWorkers() int {
	b.Helper()
	b.reserveJobs(true, leaveParamsUnchanged)
	stopped := make(chan testrig.ServiceMessage, 1)
	w := b.DialService()
	go func() { // this goroutine ends when the reply has arrived
		fmt.Fprintln(w, `{"jsonrpc":"2.0","id":1,"method":"worker.stop","params":{"timeout":"20s"}}`)
		a, err := w.ReadMessage()
		if err != nil {
			b.Error(err)
		}
		stopped <- a
	}()
	b.WaitUntil("no workers are wanted", 5*time.Second, func() bool {
		var s struct{ Workers struct{ Total int } }
		return json.Unmarshal(b.Requester.MustRequest("status", nil), &s) == nil && s.Workers.Total == 0
	})
	b.releaseStartFrames()
	if a := <-stopped; a.Error != nil {
		b.Fatalf("worker stop: %+v", *a.Error)
	}
	starts, neverStarted := b.CountLedgerEntries("S"), 0
	for _, id := range b.jobIDs {
		switch j := b.ShowJob(id); {
		case starts[b.tagsByJobID[id]] == 0 && j.State == "pending" && j.AttemptCount == 0 && len(j.AttemptHistory) == 0:
			neverStarted++
		case j.State != "completed":
			b.Errorf("%s started %d times: %+v", id, starts[b.tagsByJobID[id]], j)
		}
	}
	b.Requester.MustRequest("worker.scale", map[string]any{"count": 4})
	b.checkJobsRanOnce()
	return min(neverStarted, b.reservedJobCount)
}

// expireReservedJobs lets the jobs of a block expire after the runner has received them and before it starts them. It
// returns the number of these jobs.
func (b *reservedJobBlock) expireReservedJobs() int {
	b.Helper()
	var expiry time.Time
	b.reserveJobs(true, func(p map[string]any) {
		expiry = time.Now().Add(time.Second)
		p["expires_at"] = expiry.UTC().Format("2006-01-02T15:04:05.000Z07:00")
	})
	b.WaitUntil("expired", 5*time.Second, func() bool { return time.Now().After(expiry.Add(20 * time.Millisecond)) })
	if n := b.CountReservedJobs(); n < b.reservedJobCount {
		b.Errorf("%d of %d reserved jobs were taken from the runner", b.reservedJobCount-n, b.reservedJobCount)
	}
	b.releaseStartFrames()
	b.WaitUntil("the block expired", 10*time.Second, func() bool {
		return b.QueryDatabaseInt(`SELECT count(*) FROM jobs WHERE state < 6`) == 0
	})
	starts := b.CountLedgerEntries("S")
	for _, id := range b.jobIDs {
		if j := b.ShowJob(id); j.State != "cancelled" || j.Reason != "expired" || j.AttemptCount != 0 ||
			starts[b.tagsByJobID[id]] != 0 {
			b.Errorf("%s started %d times: %+v", id, starts[b.tagsByJobID[id]], j)
		}
	}
	return b.reservedJobCount
}

// killAndRestartService kills the service, closes the test's connection and starts the next service.
func (b *reservedJobBlock) killAndRestartService() {
	b.Helper()
	b.KillService()
	b.Requester.Conn.Close()
	b.Requester.Conn = nil
	b.StartService("--workers", "4")
}

// killServiceBeforeStartFrames kills the service while the runner delays the START frames of the block. It returns the
// number of reserved jobs.
func (b *reservedJobBlock) killServiceBeforeStartFrames() int {
	b.Helper()
	b.reserveJobs(true, leaveParamsUnchanged)
	b.killAndRestartService()
	b.releaseStartFrames()
	return b.checkJobsRanOnce()
}

// killServiceWhileJobsWait kills the service while the jobs of the block wait in the runner for a worker.
func (b *reservedJobBlock) killServiceWhileJobsWait() int {
	b.Helper()
	var busy []map[string]any
	for range 4 {
		busy = append(busy, map[string]any{"argv": []string{testrig.ToolPath("sleep"), "1"}, "priority": 10})
	}
	b.reserveJobs(false, leaveParamsUnchanged, busy...)
	b.killAndRestartService()
	return min(b.checkJobsRanOnce(), len(b.jobIDs))
}
