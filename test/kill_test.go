//go:build linux || windows

package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// killCycle lists the failpoints at which ten successive services are killed. "" means that the service is
// killed at a random moment.
var killCycle = []string{"claimed", "", "start-sent", "commit", "result-received", "", "settled", "", "before-ack", ""}

// killLoad is a load of jobs during which the service is killed repeatedly.
type killLoad struct {
	*rig
	kills    map[string]int // number of kills, by failpoint
	adopted  int            // number of running long jobs that a new service has found, with their pids
	starts   []time.Duration
	stop     atomic.Bool
	clients  sync.WaitGroup
	failures chan error
}

// A service may be killed at any moment. No acknowledged job is lost, no job runs twice, no byte
// of output is lost, and the next service finds the running jobs.
func TestServiceKilled(t *testing.T) {
	t.Parallel()
	kills := 20
	if n, err := strconv.Atoi(os.Getenv("QUEUECTL_KILLS")); err == nil {
		kills = n
	}
	serviceKilled(t, kills, "")
}

// serviceKilled checks the promises of TestServiceKilled for the given number of kills. store is the URL of
// the PostgreSQL database that contains the queue, or "" for SQLite.
func serviceKilled(t *testing.T, kills int, store string) {
	l := &killLoad{rig: newRig(t, "failpoint"), kills: map[string]int{}, failures: make(chan error, 8)}
	l.store = store
	l.start("--workers", "6")
	runner := l.runnerPid()
	for i := range 4 {
		l.clients.Go(func() { l.enqueueShort(string(rune('a' + i))) })
	}
	l.clients.Go(l.enqueueLong)
	for n := 0; n < kills; n++ {
		l.killOnce(killCycle[n%len(killCycle)], n)
	}
	for n := 0; n < 2*kills && l.failpointBelow(kills/len(killCycle)) != ""; n++ {
		l.killOnce(l.failpointBelow(kills/len(killCycle)), n)
	}
	l.env = nil
	l.start("--workers", "6")
	l.stop.Store(true)
	l.clients.Wait()
	close(l.failures)
	for err := range l.failures {
		t.Error(err)
	}
	l.waitDrained()
	l.checkSettled()
	if missing := l.failpointBelow(kills / len(killCycle)); missing != "" {
		t.Errorf("%d kills fell on %s, want %d", l.kills[missing], missing, kills/len(killCycle))
	}
	if l.adopted < kills/2/timeoutFactor || l.duplicates == 0 && kills > max(10, 20*(timeoutFactor-1)) {
		t.Errorf("%d adoptions, %d repeats known: too few to show anything", l.adopted, l.duplicates)
	}
	if now := l.runnerPids(); len(now) != 1 || now[0] != runner {
		t.Errorf("runners %v, want still %d alone", now, runner)
	}
	l.checkNothingLeft()
	var slowest time.Duration
	for _, s := range l.starts {
		slowest = max(slowest, s)
	}
	t.Logf("service killed: kills %v, jobs %d, requests repeated %d, of them known %d, running jobs adopted "+
		"%d, slowest start %v",
		l.kills, len(l.acked), l.resent, l.duplicates, l.adopted, slowest.Round(time.Millisecond))
}

// failpointBelow returns a failpoint that has fewer than want kills, "" if there is none.
func (l *killLoad) failpointBelow(want int) string {
	for _, name := range killCycle {
		if name != "" && name != "commit" && l.kills[name] < want {
			return name
		}
	}
	return ""
}

// enqueueShort plays a client that enqueues short jobs. It lets only a small backlog build up.
func (l *killLoad) enqueueShort(name string) {
	a := &requester{q: l.queue}
	for n := 0; !l.stop.Load(); n++ {
		// No job uses the exit code 1, because on Windows a killed process has that code.
		j := rigJob{size: 10, offset: 10 * (n % 1000), code: 3 * (n % 3)}
		if n%10 == 3 {
			j.size = 60 << 10
		}
		if n%40 == 5 {
			j.size = 3 << 20
		}
		if err := l.submit(a, fmt.Sprintf("%s%05d", name, n), j); err != nil {
			l.failures <- err
			return
		}
		for l.backlog() > 100 && !l.stop.Load() {
			time.Sleep(2 * time.Millisecond) // let the workers catch up
		}
	}
}

// enqueueLong keeps about three long jobs running.
func (l *killLoad) enqueueLong() {
	a := &requester{q: l.queue}
	for n := 0; !l.stop.Load(); n++ {
		if err := l.submit(a, fmt.Sprintf("L%05d", n), rigJob{size: 60 << 10, offset: 10 * n, seconds: 1 + n%3}); err != nil {
			l.failures <- err
			return
		}
		for next := time.Now().Add(600 * time.Millisecond); time.Now().Before(next) && !l.stop.Load(); {
			time.Sleep(5 * time.Millisecond) // wait in short steps, to notice soon that the load must stop
		}
	}
}

func (l *killLoad) backlog() int {
	info, err := os.Stat(filepath.Join(l.dir, "ledger"))
	if err != nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked) - int(info.Size()/noteBytes/2)
}

// killOnce starts a service and lets the failpoint kill it. If failpoint is "", it kills the service after a
// time that depends on n. It checks that the service has found the jobs of its predecessor.
func (l *killLoad) killOnce(failpoint string, n int) {
	l.Helper()
	l.kill()
	before := l.longRunning()
	l.env = nil
	if failpoint != "" {
		l.env = []string{fmt.Sprintf("QUEUECTL_FAILPOINTS=%s=kill:%d", failpoint, 1+7*n%12)}
	}
	started := time.Now()
	if err := l.tryStart("--workers", "6"); err != nil {
		if failpoint == "" || !l.waitKilled(time.Second) {
			l.Fatalf("start: %v\n%s", err, l.log)
		}
		l.kills[failpoint]++
		return
	}
	l.starts = append(l.starts, time.Since(started))
	l.checkAdopted(before)
	if failpoint == "" {
		time.Sleep(time.Duration(5+37*n%140) * time.Millisecond) // the time of the kill differs from round to round
		l.kill()
	} else if !l.waitKilled(3 * time.Second) {
		l.kill()
		failpoint = "" // the failpoint was not reached in time
	}
	l.kills[failpoint]++
}

// longRunning returns the pids of the running long jobs, by tag.
func (l *killLoad) longRunning() map[string]int {
	l.Helper()
	run := map[string]int{}
	for _, n := range l.ledger() {
		if n.kind == "S" && n.tag[0] == 'L' && isAlive(n.pid) {
			run[n.tag] = n.pid
		}
		if n.kind == "E" {
			delete(run, n.tag)
		}
	}
	return run
}

// checkAdopted checks that the new service knows the long jobs that ran when the old service was killed.
func (l *killLoad) checkAdopted(before map[string]int) {
	l.Helper()
	listed, err := (&requester{q: l.queue}).listAll("processing")
	if err != nil {
		return // the failpoint has already killed the service
	}
	pids := map[string]int{}
	for _, j := range listed {
		pids[j.ID] = j.PID
	}
	after := l.longRunning()
	for tag, pid := range before {
		l.mu.Lock()
		id := l.acked[tag].id
		l.mu.Unlock()
		switch {
		case id != "" && pids[id] == pid:
			l.adopted++
		case id != "" && after[tag] == pid:
			l.Errorf("long job %s runs as %d; the new service says %d", tag, pid, pids[id])
		}
	}
}

// waitDrained waits until every acknowledged job has ended.
func (l *killLoad) waitDrained() {
	l.Helper()
	l.waitUntil("all jobs ended", 90*time.Second, func() bool {
		return l.queryInt(`SELECT count(*) FROM jobs WHERE state < 6`) == 0
	})
	if n := l.queryInt(`SELECT count(*) FROM jobs`); n != len(l.acked) {
		l.Errorf("%d jobs are stored, %d were acknowledged", n, len(l.acked))
	}
	if n := l.queryInt(`SELECT max(seq) - min(seq) + 1 - count(*) FROM events`); n != 0 {
		l.Errorf("the events have %d gaps", n)
	}
	for _, kind := range []string{"enqueued", "ended"} {
		if n := l.queryInt(`SELECT count(*) FROM (SELECT job FROM events WHERE kind = '` + kind +
			`' GROUP BY job HAVING count(*) = 1) AS once`); n != len(l.acked) {
			l.Errorf("%d jobs have one event %s, want %d", n, kind, len(l.acked))
		}
	}
}

// checkSettled compares every job with the ledger, and its stored output with what it printed.
func (l *killLoad) checkSettled() {
	l.Helper()
	l.checkNoOverlap()
	starts, ends := l.countNotes("S"), l.countNotes("E")
	if len(starts) != len(l.acked) {
		l.Errorf("%d jobs started, %d were acknowledged", len(starts), len(l.acked))
	}
	a := &requester{q: l.queue}
	jobs, err := a.listAll("")
	if err != nil {
		l.Fatal(err)
	}
	byID := map[string]job{}
	for _, j := range jobs {
		byID[j.ID] = j
	}
	sizes := map[int]int{}
	for tag, want := range l.acked {
		state := "completed"
		if want.code != 0 {
			state = "dead"
		}
		got := byID[want.id]
		if starts[tag] != 1 || ends[tag] != 1 || got.State != state || got.Attempts != 1 || got.ExitCode == nil ||
			*got.ExitCode != want.code {
			code := -1
			if got.ExitCode != nil {
				code = *got.ExitCode
			}
			l.Errorf("%s (%s): started %d times, ended %d times, %s, attempts %d, exit code %d, %q; want once, "+
				"%s, 1, %d; it said %q",
				tag, want.id, starts[tag], ends[tag], got.State, got.Attempts, code, got.Error, state, want.code,
				l.show(want.id).Stderr)
		}
		out, err := a.logs(want.id)
		if err != nil || !bytes.Equal(out, l.numbers[want.offset:want.offset+want.size]) {
			l.Errorf("%s (%s): output of %d bytes is not the %d bytes printed: %v", tag, want.id, len(out), want.size, err)
		}
		sizes[want.size]++
	}
	if len(sizes) != 3 {
		l.Errorf("outputs by size %v, want three sizes", sizes)
	}
}

// checkNothingLeft checks that no job's process remains, and that the service and its runner end with
// all results acknowledged.
func (l *killLoad) checkNothingLeft() {
	l.Helper()
	if s := l.strayProcesses(); len(s) > 0 {
		l.Errorf("stray processes: %v", s)
	}
	if code := l.queue.stop(); code != 0 {
		l.Errorf("stopped with exit code %d", code)
	}
	l.waitUntil("the runner ended", 5*time.Second, func() bool { return len(l.runnerPids()) == 0 })
	remaining, _ := filepath.Glob(filepath.Join(l.dir, "runner", "[0-9]*"))
	if len(remaining) > 0 {
		l.Errorf("runner folders with results that were not acknowledged: %v", remaining)
	}
}

// The test interrupts a block of prefetched jobs before it starts. Cancelled and expired jobs of the block do
// not run. If the workers are stopped or the service is killed, the jobs return to the queue and run once.
func TestPrefetchedBlockIsInterrupted(t *testing.T) {
	counts := map[string]int{}
	for name, hit := range map[string]func(*reservedBlock) int{
		"cancel": (*reservedBlock).cancelReserved, "stop": (*reservedBlock).stopWorkers,
		"expiry": (*reservedBlock).expireReserved,
		"kill":   (*reservedBlock).killWhileHeld, "kill in runner": (*reservedBlock).killWhileWaiting,
	} {
		t.Run(name, func(t *testing.T) {
			// A block has 32 to 64 jobs. On a busy machine, workers may start most of these jobs before the
			// test reaches them.
			const enough = 24
			for try := 0; try < 5 && counts[name] < enough; try++ {
				b := newReservedBlock(t)
				counts[name] = hit(b)
				b.checkNoOverlap()
			}
			if counts[name] < enough {
				t.Errorf("%d reserved jobs were hit, want at least %d", counts[name], enough)
			}
		})
	}
	t.Logf("reserved jobs hit: %v", counts)
}

// reservedBlock is a rig whose runner holds every START while the file go does not exist.
type reservedBlock struct {
	*rig
	*requester
	ids           []string
	tags          map[string]string // tags of the jobs, by job id
	jobsMade      int               // number of jobs made for blocks, including failed tries
	reservedCount int               // number of reserved jobs when the block was ready
}

func newReservedBlock(t *testing.T) *reservedBlock {
	b := &reservedBlock{rig: newRig(t, "failpoint"), tags: map[string]string{}}
	b.requester = &requester{q: b.queue}
	b.env = []string{"QUEUECTL_FAILPOINTS=runner-start=wait:" + b.path("go") + "," + prefetchFailpoints}
	b.release()
	b.start("--workers", "4")
	return b
}

func (b *reservedBlock) release() { b.writeFile("go", "") }

// reserve enqueues the jobs of the parameter before, and 64 more. It repeats that until at least 32 jobs are
// reserved.
func (b *reservedBlock) reserve(hold bool, edit func(map[string]any), before ...map[string]any) {
	b.Helper()
	for range 5 {
		b.warmUp(4)
		b.ids = nil
		if hold {
			os.Remove(filepath.Join(b.dir, "go"))
		}
		jobs := before
		for range 64 {
			b.jobsMade++
			jobs = append(jobs, b.params(fmt.Sprintf("b%05d", b.jobsMade), rigJob{size: 10}))
			edit(jobs[len(jobs)-1])
		}
		all := b.batch(jobs...)
		for n, id := range all[len(before):] {
			b.ids = append(b.ids, id)
			b.tags[id] = jobs[len(before)+n]["argv"].([]string)[2]
		}
		for range 20 { // a block is reserved in one commit, so a few looks are enough
			if b.reservedCount = b.countReserved(); b.reservedCount >= 32 {
				return
			}
		}
		b.release() // the machine was slow and the block too small, so run the jobs and try again
	}
	b.Fatalf("a block of %d jobs at most", b.reservedCount)
}

func unchanged(map[string]any) {}

// checkRanOnce checks that every job of the block has run once. It returns the number of jobs that were
// reserved.
func (b *reservedBlock) checkRanOnce() int {
	b.Helper()
	b.waitUntil("the block ended", 30*time.Second, func() bool {
		return b.queryInt(`SELECT count(*) FROM jobs WHERE state < 6`) == 0
	})
	starts := b.countNotes("S")
	for _, id := range b.ids {
		if j := b.show(id); starts[b.tags[id]] != 1 || j.State != "completed" || j.Attempts != 1 || len(j.History) != 1 {
			b.Errorf("%s started %d times: %+v", id, starts[b.tags[id]], j)
		}
	}
	return b.reservedCount
}

func (b *reservedBlock) cancelReserved() int {
	b.Helper()
	b.reserve(true, unchanged)
	w := b.dial()
	for n, id := range b.ids {
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%d,"method":"cancel","params":{"ids":[%q]}}`+"\n", n, id)
	}
	b.requester.mustRequest("status", nil)
	b.release()
	verdicts := make([]string, len(b.ids))
	for range b.ids {
		a, err := w.read()
		n, bad := strconv.Atoi(string(a.ID))
		if err != nil || bad != nil {
			b.Fatal(err, bad)
		}
		verdicts[n] = string(a.Result)
	}
	starts, neverStarted := b.countNotes("S"), 0
	for n, id := range b.ids {
		j, startCount := b.show(id), starts[b.tags[id]]
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

func (b *reservedBlock) stopWorkers() int {
	b.Helper()
	b.reserve(true, unchanged)
	stopped := make(chan wireMessage, 1)
	w := b.dial()
	go func() { // this goroutine ends when the reply has arrived
		fmt.Fprintln(w, `{"jsonrpc":"2.0","id":1,"method":"worker.stop","params":{"timeout":"20s"}}`)
		a, err := w.read()
		if err != nil {
			b.Error(err)
		}
		stopped <- a
	}()
	b.waitUntil("no workers are wanted", 5*time.Second, func() bool {
		var s struct{ Workers struct{ Total int } }
		return json.Unmarshal(b.requester.mustRequest("status", nil), &s) == nil && s.Workers.Total == 0
	})
	b.release()
	if a := <-stopped; a.Error != nil {
		b.Fatalf("worker stop: %+v", *a.Error)
	}
	starts, neverStarted := b.countNotes("S"), 0
	for _, id := range b.ids {
		switch j := b.show(id); {
		case starts[b.tags[id]] == 0 && j.State == "pending" && j.Attempts == 0 && len(j.History) == 0:
			neverStarted++
		case j.State != "completed":
			b.Errorf("%s started %d times: %+v", id, starts[b.tags[id]], j)
		}
	}
	b.requester.mustRequest("worker.scale", map[string]any{"count": 4})
	b.checkRanOnce()
	return min(neverStarted, b.reservedCount)
}

func (b *reservedBlock) expireReserved() int {
	b.Helper()
	var expiry time.Time
	b.reserve(true, func(p map[string]any) {
		expiry = time.Now().Add(time.Second)
		p["expires_at"] = expiry.UTC().Format("2006-01-02T15:04:05.000Z07:00")
	})
	b.waitUntil("expired", 5*time.Second, func() bool { return time.Now().After(expiry.Add(20 * time.Millisecond)) })
	if n := b.countReserved(); n < b.reservedCount {
		b.Errorf("%d of %d reserved jobs were taken from the runner", b.reservedCount-n, b.reservedCount)
	}
	b.release()
	b.waitUntil("the block expired", 10*time.Second, func() bool {
		return b.queryInt(`SELECT count(*) FROM jobs WHERE state < 6`) == 0
	})
	starts := b.countNotes("S")
	for _, id := range b.ids {
		if j := b.show(id); j.State != "cancelled" || j.Reason != "expired" || j.Attempts != 0 || starts[b.tags[id]] != 0 {
			b.Errorf("%s started %d times: %+v", id, starts[b.tags[id]], j)
		}
	}
	return b.reservedCount
}

// restart kills the service, closes the connection to it and starts the next service.
func (b *reservedBlock) restart() {
	b.Helper()
	b.kill()
	b.requester.conn.Close()
	b.requester.conn = nil
	b.start("--workers", "4")
}

// killWhileHeld kills the service while the runner holds its START frames.
func (b *reservedBlock) killWhileHeld() int {
	b.Helper()
	b.reserve(true, unchanged)
	b.restart()
	b.release()
	return b.checkRanOnce()
}

// killWhileWaiting kills the service while the block waits in the runner for a worker.
func (b *reservedBlock) killWhileWaiting() int {
	b.Helper()
	var busy []map[string]any
	for range 4 {
		busy = append(busy, map[string]any{"argv": []string{toolPath("sleep"), "1"}, "priority": 10})
	}
	b.reserve(false, unchanged, busy...)
	b.restart()
	return min(b.checkRanOnce(), len(b.ids))
}
