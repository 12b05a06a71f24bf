//go:build linux || windows

package durability

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// killCycle lists the failpoints (named places in the program) at which ten successive services are killed. For
// "", the service is killed at a random time.
var killCycle = []string{"claimed", "", "start-sent", "commit", "result-received", "", "settled", "", "before-ack", ""}

// killLoad runs jobs while the service is killed again and again.
type killLoad struct {
	*testrig.Rig
	kills         map[string]int  // number of kills, by failpoint
	adoptedCount  int             // number of times that a new service found a running long job with its pid
	startTimes    []time.Duration // times until a new service was ready
	stopRequested atomic.Bool
	clients       sync.WaitGroup
	failures      chan error
}

// If the service is killed at any time, no acknowledged job is lost, no job runs twice, and no
// output is lost. The next service finds the running jobs.
func TestServiceKilled(t *testing.T) {
	t.Parallel()
	kills := 20
	if n, err := strconv.Atoi(os.Getenv("QUEUECTL_KILLS")); err == nil {
		kills = n
	}
	testServiceKilled(t, kills, "")
}

// testServiceKilled checks the promises of TestServiceKilled while it kills the service the given number of times.
// storeURL is the URL of the PostgreSQL database that contains the queue, or "" for SQLite.
func testServiceKilled(t *testing.T, killCount int, storeURL string) {
	l := &killLoad{Rig: testrig.NewRig(t, "failpoint"), kills: map[string]int{}, failures: make(chan error, 8)}
	l.Store = storeURL
	l.Start("--workers", "6")
	runner := l.RunnerPid()
	for i := range 4 {
		l.clients.Go(func() { l.enqueueShort(string(rune('a' + i))) })
	}
	l.clients.Go(l.enqueueLong)
	for n := 0; n < killCount; n++ {
		l.killOnce(killCycle[n%len(killCycle)], n)
	}
	for n := 0; n < 2*killCount && l.failpointBelow(killCount/len(killCycle)) != ""; n++ {
		l.killOnce(l.failpointBelow(killCount/len(killCycle)), n)
	}
	wantAdopted := killCount / 2 / testrig.TimeoutFactor
	// On a slow machine, no long job may have been running at most of the kills.
	for n := 0; n < killCount && l.adoptedCount < wantAdopted; n++ {
		l.killDuringLongJob(n)
	}
	l.Env = nil
	l.Start("--workers", "6")
	l.stopRequested.Store(true)
	l.clients.Wait()
	close(l.failures)
	for err := range l.failures {
		t.Error(err)
	}
	l.waitDrained()
	l.checkSettled()
	if missing := l.failpointBelow(killCount / len(killCycle)); missing != "" {
		t.Errorf("%d kills happened at %s, want %d", l.kills[missing], missing, killCount/len(killCycle))
	}
	if l.adoptedCount < wantAdopted || l.Duplicates == 0 &&
		killCount > max(10, 20*(testrig.TimeoutFactor-1)) {
		t.Errorf("%d running jobs were adopted and %d repeated requests were recognised, too few to prove anything",
			l.adoptedCount, l.Duplicates)
	}
	if now := l.RunnerPids(); len(now) != 1 || now[0] != runner {
		t.Errorf("runners %v, want only the first one, %d", now, runner)
	}
	l.checkNothingLeft()
	var slowestStart time.Duration
	for _, s := range l.startTimes {
		slowestStart = max(slowestStart, s)
	}
	t.Logf("service killed: kills %v, jobs %d, requests repeated %d, of them known %d, running jobs adopted "+
		"%d, slowest start %v",
		l.kills, len(l.AckedJobs), l.Resent, l.Duplicates, l.adoptedCount, slowestStart.Round(time.Millisecond))
}

// failpointBelow returns a failpoint, other than "commit", at which the service was killed less often than
// wantKills. It returns "" if there is no such failpoint.
func (l *killLoad) failpointBelow(wantKills int) string {
	for _, name := range killCycle {
		if name != "" && name != "commit" && l.kills[name] < wantKills {
			return name
		}
	}
	return ""
}

// enqueueShort enqueues short jobs until the load stops. It waits while about 100 acknowledged jobs have not
// ended.
func (l *killLoad) enqueueShort(name string) {
	a := &testrig.Requester{Q: l.Queue}
	for n := 0; !l.stopRequested.Load(); n++ {
		// No job uses the exit code 1, because on Windows a killed process has that code.
		j := testrig.RigJob{Size: 10, Offset: 10 * (n % 1000), Code: 3 * (n % 3)}
		if n%10 == 3 {
			j.Size = 60 << 10
		}
		if n%40 == 5 {
			j.Size = 3 << 20
		}
		if err := l.Submit(a, fmt.Sprintf("%s%05d", name, n), j); err != nil {
			l.failures <- err
			return
		}
		for l.backlogSize() > 100 && !l.stopRequested.Load() {
			time.Sleep(2 * time.Millisecond) // let the workers catch up
		}
	}
}

// enqueueLong keeps about three long jobs running until the load stops.
func (l *killLoad) enqueueLong() {
	a := &testrig.Requester{Q: l.Queue}
	for n := 0; !l.stopRequested.Load(); n++ {
		if err := l.Submit(a, fmt.Sprintf("L%05d", n), testrig.RigJob{Size: 60 << 10, Offset: 10 * n, Seconds: 1 +
			n%3}); err != nil {
			l.failures <- err
			return
		}
		for next := time.Now().Add(600 * time.Millisecond); time.Now().Before(next) && !l.stopRequested.Load(); {
			time.Sleep(5 * time.Millisecond) // wait in short steps, to notice soon that the load must stop
		}
	}
}

// backlogSize returns the approximate number of acknowledged jobs that have not ended.
func (l *killLoad) backlogSize() int {
	info, err := os.Stat(filepath.Join(l.Dir, "ledger"))
	if err != nil {
		return 0
	}
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return len(l.AckedJobs) - int(info.Size()/testrig.LedgerEntryBytes/2)
}

// killOnce starts a service that is killed when it reaches the failpoint. If failpoint is "", killOnce kills
// the service after a time that depends on n. It also checks that the new service has found the running jobs
// of the previous one.
func (l *killLoad) killOnce(failpoint string, n int) {
	l.Helper()
	l.Kill()
	before := l.longRunning()
	l.Env = nil
	if failpoint != "" {
		l.Env = []string{fmt.Sprintf("QUEUECTL_FAILPOINTS=%s=kill:%d", failpoint, 1+7*n%12)}
	}
	started := time.Now()
	if err := l.TryStart("--workers", "6"); err != nil {
		if failpoint == "" || !l.WaitKilled(time.Second) {
			l.Fatalf("start: %v\n%s", err, l.ServiceLog)
		}
		l.kills[failpoint]++
		return
	}
	l.startTimes = append(l.startTimes, time.Since(started))
	l.checkAdopted(before)
	if failpoint == "" {
		time.Sleep(time.Duration(5+37*n%140) * time.Millisecond) // the time of the kill differs from round to round
		l.Kill()
	} else if !l.WaitKilled(3 * time.Second) {
		l.Kill()
		failpoint = "" // the failpoint was not reached in time, so killOnce has killed the service
	}
	l.kills[failpoint]++
}

// killDuringLongJob kills a service while at least one long job is running, and calls killOnce.
func (l *killLoad) killDuringLongJob(n int) {
	l.Helper()
	l.Kill()
	l.Env = nil
	l.Start("--workers", "6")
	l.WaitUntil("a long job is running", 20*time.Second, func() bool { return len(l.longRunning()) > 0 })
	l.killOnce("", n)
}

// longRunning returns the pids of the long jobs that are running, by the tag (name) of the job.
func (l *killLoad) longRunning() map[string]int {
	l.Helper()
	run := map[string]int{}
	for _, n := range l.Ledger() {
		if n.Kind == "S" && n.Tag[0] == 'L' && testrig.IsAlive(n.Pid) {
			run[n.Tag] = n.Pid
		}
		if n.Kind == "E" {
			delete(run, n.Tag)
		}
	}
	return run
}

// checkAdopted checks that the new service knows the long jobs that were running when the old service was
// killed. The argument contains their pids, by tag.
func (l *killLoad) checkAdopted(oldPIDs map[string]int) {
	l.Helper()
	listed, err := (&testrig.Requester{Q: l.Queue}).ListAll("processing")
	if err != nil {
		return // the failpoint has already killed the service
	}
	pids := map[string]int{}
	for _, j := range listed {
		pids[j.ID] = j.PID
	}
	after := l.longRunning()
	for tag, pid := range oldPIDs {
		l.Mu.Lock()
		id := l.AckedJobs[tag].ID
		l.Mu.Unlock()
		switch {
		case id != "" && pids[id] == pid:
			l.adoptedCount++
		case id != "" && after[tag] == pid:
			l.Errorf("long job %s runs as %d; the new service says %d", tag, pid, pids[id])
		}
	}
}

// waitDrained waits until every job whose enqueue was acknowledged has ended.
func (l *killLoad) waitDrained() {
	l.Helper()
	l.WaitUntil("all jobs ended", 90*time.Second, func() bool {
		return l.QueryInt(`SELECT count(*) FROM jobs WHERE state < 6`) == 0
	})
	if n := l.QueryInt(`SELECT count(*) FROM jobs`); n != len(l.AckedJobs) {
		l.Errorf("%d jobs are stored, %d were acknowledged", n, len(l.AckedJobs))
	}
	if n := l.QueryInt(`SELECT max(seq) - min(seq) + 1 - count(*) FROM events`); n != 0 {
		l.Errorf("the events have %d gaps", n)
	}
	for _, kind := range []string{"enqueued", "ended"} {
		if n := l.QueryInt(`SELECT count(*) FROM (SELECT job FROM events WHERE kind = '` + kind +
			`' GROUP BY job HAVING count(*) = 1) AS once`); n != len(l.AckedJobs) {
			l.Errorf("%d jobs have one event %s, want %d", n, kind, len(l.AckedJobs))
		}
	}
}

// checkSettled compares every job with the ledger (the notes that the jobs wrote), and its stored output with
// the output that it printed.
func (l *killLoad) checkSettled() {
	l.Helper()
	l.CheckNoOverlap()
	starts, ends := l.CountLedgerEntries("S"), l.CountLedgerEntries("E")
	if len(starts) != len(l.AckedJobs) {
		l.Errorf("%d jobs started, %d were acknowledged", len(starts), len(l.AckedJobs))
	}
	a := &testrig.Requester{Q: l.Queue}
	jobs, err := a.ListAll("")
	if err != nil {
		l.Fatal(err)
	}
	byID := map[string]testrig.Job{}
	for _, j := range jobs {
		byID[j.ID] = j
	}
	sizes := map[int]int{}
	for tag, want := range l.AckedJobs {
		state := "completed"
		if want.Code != 0 {
			state = "dead"
		}
		got := byID[want.ID]
		if starts[tag] != 1 || ends[tag] != 1 || got.State != state || got.Attempts != 1 || got.ExitCode == nil ||
			*got.ExitCode != want.Code {
			code := -1
			if got.ExitCode != nil {
				code = *got.ExitCode
			}
			l.Errorf("%s (%s): started %d times, ended %d times, %s, attempts %d, exit code %d, %q; want once, "+
				"%s, 1, %d; it said %q",
				tag, want.ID, starts[tag], ends[tag], got.State, got.Attempts, code, got.Error, state, want.Code,
				l.Show(want.ID).Stderr)
		}
		out, err := a.Logs(want.ID)
		if err != nil || !bytes.Equal(out, l.Numbers[want.Offset:want.Offset+want.Size]) {
			l.Errorf("%s (%s): output of %d bytes is not the %d bytes printed: %v", tag, want.ID, len(out), want.Size, err)
		}
		sizes[want.Size]++
	}
	if len(sizes) != 3 {
		l.Errorf("outputs by size %v, want three sizes", sizes)
	}
}

// checkNothingLeft checks that no process of a job remains, that the service and its runner end, and that the
// service has acknowledged all results.
func (l *killLoad) checkNothingLeft() {
	l.Helper()
	if s := l.StrayProcesses(); len(s) > 0 {
		l.Errorf("stray processes: %v", s)
	}
	if code := l.Queue.Stop(); code != 0 {
		l.Errorf("stopped with exit code %d", code)
	}
	l.WaitUntil("the runner ended", 5*time.Second, func() bool { return len(l.RunnerPids()) == 0 })
	remaining, _ := filepath.Glob(filepath.Join(l.Dir, "runner", "[0-9]*"))
	if len(remaining) > 0 {
		l.Errorf("runner directories with results that were not acknowledged: %v", remaining)
	}
}
