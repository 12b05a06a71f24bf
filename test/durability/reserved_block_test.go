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

// The service sends many jobs together (a block) to a runner before workers are free. If jobs of a block are
// cancelled or expire before they start, they do not run. If the workers are stopped or the service is killed
// before they start, they run once, later.
func TestPrefetchedBlockIsInterrupted(t *testing.T) {
	testrig.SkipIfShort(t)
	counts := map[string]int{}
	// Each function returns the number of reserved jobs that it interrupted.
	for name, hit := range map[string]func(*reservedBlock) int{
		"cancel": (*reservedBlock).cancelReserved, "stop": (*reservedBlock).stopWorkers,
		"expiry": (*reservedBlock).expireReserved,
		"kill":   (*reservedBlock).killWhileHeld, "kill in runner": (*reservedBlock).killWhileWaiting,
	} {
		t.Run(name, func(t *testing.T) {
			// A block has 32 to 64 jobs. On a busy machine, most of them may start before the test interrupts
			// the block.
			const enough = 24
			for try := 0; try < 5 && counts[name] < enough; try++ {
				b := newReservedBlock(t)
				counts[name] = hit(b)
				b.CheckNoOverlap()
			}
			if counts[name] < enough {
				t.Errorf("%d reserved jobs were interrupted, want at least %d", counts[name], enough)
			}
		})
	}
	t.Logf("reserved jobs that were interrupted: %v", counts)
}

// reservedBlock contains a queue whose runner has received a block of jobs but not started them. The runner
// delays every START frame (the message that starts a job) until the file "go" exists.
type reservedBlock struct {
	*testrig.Rig
	*testrig.Requester
	ids           []string
	tags          map[string]string // tags of the jobs, by job id
	madeJobCount  int               // number of enqueued jobs, including those of too small blocks
	reservedCount int               // number of jobs in the runner that had not started when the block was ready
}

func newReservedBlock(t *testing.T) *reservedBlock {
	b := &reservedBlock{Rig: testrig.NewRig(t, "failpoint"), tags: map[string]string{}}
	b.Requester = &testrig.Requester{Q: b.Queue}
	b.Env = []string{"QUEUECTL_FAILPOINTS=runner-start=wait:" + b.Path("go") + "," + testrig.PrefetchFailpoints}
	b.release()
	b.Start("--workers", "4")
	return b
}

// release lets the runner read all START frames.
func (b *reservedBlock) release() { b.WriteFile("go", "") }

// reserve enqueues the given jobs and 64 more, whose parameters editParams may change. If delayStart is true,
// the runner delays their START frames. reserve repeats this until at least 32 jobs are reserved: the runner
// has received but not started them.
func (b *reservedBlock) reserve(delayStart bool, editParams func(map[string]any), firstJobs ...map[string]any) {
	b.Helper()
	for range 5 {
		b.WarmUp(4)
		b.ids = nil
		if delayStart {
			os.Remove(filepath.Join(b.Dir, "go"))
		}
		jobs := firstJobs
		for range 64 {
			b.madeJobCount++
			jobs = append(jobs, b.Params(fmt.Sprintf("b%05d", b.madeJobCount), testrig.RigJob{Size: 10}))
			editParams(jobs[len(jobs)-1])
		}
		all := b.Batch(jobs...)
		for n, id := range all[len(firstJobs):] {
			b.ids = append(b.ids, id)
			b.tags[id] = jobs[len(firstJobs)+n]["argv"].([]string)[2]
		}
		for range 20 { // one commit reserves the whole block, so a few checks are enough
			if b.reservedCount = b.CountReserved(); b.reservedCount >= 32 {
				return
			}
		}
		b.release() // the machine was slow and the block is too small: run its jobs and try again
	}
	b.Fatalf("the largest block had %d jobs, want at least 32", b.reservedCount)
}

// changeNothing changes no parameters. It is an argument for the method reserve.
func changeNothing(map[string]any) {}

// checkRanOnce checks that every job of the block has run once. It returns the number of jobs that were
// reserved.
func (b *reservedBlock) checkRanOnce() int {
	b.Helper()
	b.WaitUntil("the block ended", 30*time.Second, func() bool {
		return b.QueryInt(`SELECT count(*) FROM jobs WHERE state < 6`) == 0
	})
	starts := b.CountLedgerEntries("S")
	for _, id := range b.ids {
		if j := b.Show(id); starts[b.tags[id]] != 1 || j.State != "completed" || j.Attempts != 1 || len(j.History) != 1 {
			b.Errorf("%s started %d times: %+v", id, starts[b.tags[id]], j)
		}
	}
	return b.reservedCount
}

// cancelReserved cancels the jobs of a block. It returns the number of reserved jobs that never started.
func (b *reservedBlock) cancelReserved() int {
	b.Helper()
	b.reserve(true, changeNothing)
	w := b.Dial()
	for n, id := range b.ids {
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%d,"method":"cancel","params":{"ids":[%q]}}`+"\n", n, id)
	}
	b.Requester.MustRequest("status", nil)
	b.release()
	verdicts := make([]string, len(b.ids))
	for range b.ids {
		a, err := w.ReadMessage()
		n, bad := strconv.Atoi(string(a.ID))
		if err != nil || bad != nil {
			b.Fatal(err, bad)
		}
		verdicts[n] = string(a.Result)
	}
	starts, neverStarted := b.CountLedgerEntries("S"), 0
	for n, id := range b.ids {
		j, startCount := b.Show(id), starts[b.tags[id]]
		done := strings.Contains(verdicts[n], `"done":["`)
		switch {
		case done && j.State == "cancelled" && startCount == 0 && j.Attempts == 0 && len(j.History) == 0:
			neverStarted++
		case done && j.State == "cancelled" && startCount <= 1 && len(j.History) == 1: // the job had already started
		case !done && strings.Contains(verdicts[n], "wrong_state") && j.State == "completed" && startCount == 1:
		default:
			b.Errorf("cancel %s: %s, started %d times: %+v", id, verdicts[n], startCount, j)
		}
	}
	return min(neverStarted, b.reservedCount)
}

// stopWorkers stops the workers while the runner has received a block of jobs but not started them. It
// returns the number of reserved jobs that returned to the queue.
func (b *reservedBlock) stopWorkers() int {
	b.Helper()
	b.reserve(true, changeNothing)
	stopped := make(chan testrig.WireMessage, 1)
	w := b.Dial()
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
	b.release()
	if a := <-stopped; a.Error != nil {
		b.Fatalf("worker stop: %+v", *a.Error)
	}
	starts, neverStarted := b.CountLedgerEntries("S"), 0
	for _, id := range b.ids {
		switch j := b.Show(id); {
		case starts[b.tags[id]] == 0 && j.State == "pending" && j.Attempts == 0 && len(j.History) == 0:
			neverStarted++
		case j.State != "completed":
			b.Errorf("%s started %d times: %+v", id, starts[b.tags[id]], j)
		}
	}
	b.Requester.MustRequest("worker.scale", map[string]any{"count": 4})
	b.checkRanOnce()
	return min(neverStarted, b.reservedCount)
}

// expireReserved lets the jobs of a block expire after the runner has received them and before it starts
// them. It returns their number.
func (b *reservedBlock) expireReserved() int {
	b.Helper()
	var expiry time.Time
	b.reserve(true, func(p map[string]any) {
		expiry = time.Now().Add(time.Second)
		p["expires_at"] = expiry.UTC().Format("2006-01-02T15:04:05.000Z07:00")
	})
	b.WaitUntil("expired", 5*time.Second, func() bool { return time.Now().After(expiry.Add(20 * time.Millisecond)) })
	if n := b.CountReserved(); n < b.reservedCount {
		b.Errorf("%d of %d reserved jobs were taken from the runner", b.reservedCount-n, b.reservedCount)
	}
	b.release()
	b.WaitUntil("the block expired", 10*time.Second, func() bool {
		return b.QueryInt(`SELECT count(*) FROM jobs WHERE state < 6`) == 0
	})
	starts := b.CountLedgerEntries("S")
	for _, id := range b.ids {
		if j := b.Show(id); j.State != "cancelled" || j.Reason != "expired" || j.Attempts != 0 || starts[b.tags[id]] != 0 {
			b.Errorf("%s started %d times: %+v", id, starts[b.tags[id]], j)
		}
	}
	return b.reservedCount
}

// restart kills the service, closes the test's connection and starts the next service.
func (b *reservedBlock) restart() {
	b.Helper()
	b.Kill()
	b.Requester.Conn.Close()
	b.Requester.Conn = nil
	b.Start("--workers", "4")
}

// killWhileHeld kills the service while the runner delays the START frames of the block. It returns the
// number of reserved jobs.
func (b *reservedBlock) killWhileHeld() int {
	b.Helper()
	b.reserve(true, changeNothing)
	b.restart()
	b.release()
	return b.checkRanOnce()
}

// killWhileWaiting kills the service while the jobs of the block wait in the runner for a worker.
func (b *reservedBlock) killWhileWaiting() int {
	b.Helper()
	var busy []map[string]any
	for range 4 {
		busy = append(busy, map[string]any{"argv": []string{testrig.ToolPath("sleep"), "1"}, "priority": 10})
	}
	b.reserve(false, changeNothing, busy...)
	b.restart()
	return min(b.checkRanOnce(), len(b.ids))
}
