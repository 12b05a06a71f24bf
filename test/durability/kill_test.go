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

// killFailpoints lists the failpoints (named places in the program) at which ten successive services are killed. For
// "", the service is killed at a random time.
var killFailpoints = []string{"claimed", "", "start-sent", "commit", "result-received", "", "settled", "", "before-ack",
	""}

// killTest runs jobs while the service is killed again and again.
type killTest struct {
	*testrig.LedgerQueue
	killsByFailpoint      map[string]int  // number of kills, by failpoint (place in the program)
	adoptedJobCount       int             // number of times that a new service found a running long job with its pid
	serviceStartDurations []time.Duration // times until a new service was ready
	stopRequested         atomic.Bool
	clients               sync.WaitGroup
	failures              chan error
}

// If the service is killed at any time, no acknowledged job is lost, no job runs twice, and no
// output is lost. The next service finds the running jobs.
func TestServiceKilled(t *testing.T) {
	t.Parallel()
	kills := 20
	if n, err := strconv.Atoi(os.Getenv("QUEUECTL_KILLS")); err == nil {
		kills = n
	}
	checkServiceKills(t, kills, "")
}

// checkServiceKills checks the promises of TestServiceKilled while it kills the service the given number of times.
// storeURL is the URL of the PostgreSQL database that contains the queue, or "" for SQLite.
func checkServiceKills(t *testing.T, killCount int, storeURL string) {
	l := &killTest{LedgerQueue: testrig.NewLedgerQueue(t, "failpoint"), killsByFailpoint: map[string]int{},
		failures: make(chan error, 8)}
	l.StoreURL = storeURL
	l.StartService("--workers", "6")
	runner := l.OnlyRunnerPID()
	for i := range 4 {
		l.clients.Go(func() { l.enqueueShortJobs(string(rune('a' + i))) })
	}
	l.clients.Go(l.keepLongJobsRunning)
	for n := 0; n < killCount; n++ {
		l.killServiceAtFailpoint(killFailpoints[n%len(killFailpoints)], n)
	}
	for n := 0; n < 2*killCount && l.failpointWithFewerKills(killCount/len(killFailpoints)) != ""; n++ {
		l.killServiceAtFailpoint(l.failpointWithFewerKills(killCount/len(killFailpoints)), n)
	}
	wantAdopted := killCount / 2 / testrig.TimeoutFactor
	// On a slow machine, no long job may have been running at most of the kills.
	for n := 0; n < killCount && l.adoptedJobCount < wantAdopted; n++ {
		l.killDuringLongJob(n)
	}
	l.ServiceEnv = nil
	l.StartService("--workers", "6")
	l.stopRequested.Store(true)
	l.clients.Wait()
	close(l.failures)
	for err := range l.failures {
		t.Error(err)
	}
	l.waitUntilJobsEnd()
	l.checkJobResults()
	if missing := l.failpointWithFewerKills(killCount / len(killFailpoints)); missing != "" {
		t.Errorf("%d kills happened at %s, want %d", l.killsByFailpoint[missing], missing, killCount/len(killFailpoints))
	}
	if l.adoptedJobCount < wantAdopted || l.RecognisedDuplicateCount == 0 &&
		killCount > max(10, 20*(testrig.TimeoutFactor-1)) {
		t.Errorf("%d running jobs were adopted and %d repeated requests were recognised, too few to prove anything",
			l.adoptedJobCount, l.RecognisedDuplicateCount)
	}
	if now := l.RunnerPIDs(); len(now) != 1 || now[0] != runner {
		t.Errorf("runners %v, want only the first one, %d", now, runner)
	}
	l.checkNoProcessLeft()
	var slowestStart time.Duration
	for _, s := range l.serviceStartDurations {
		slowestStart = max(slowestStart, s)
	}
	t.Logf("service killed: kills %v, jobs %d, requests repeated %d, of them known %d, running jobs adopted "+
		"%d, slowest start %v",
		l.killsByFailpoint, len(l.AcknowledgedJobs), l.ResentRequestCount, l.RecognisedDuplicateCount, l.adoptedJobCount,
		slowestStart.Round(time.Millisecond))
}

// failpointWithFewerKills returns a failpoint, other than "commit", at which the service was killed less often than
// wantKills. It returns "" if there is no such failpoint.
func (l *killTest) failpointWithFewerKills(wantKills int) string {
	for _, name := range killFailpoints {
		if name != "" && name != "commit" && l.killsByFailpoint[name] < wantKills {
			return name
		}
	}
	return ""
}

// enqueueShortJobs enqueues short jobs until the load stops. It waits while about 100 acknowledged jobs have not
// ended.
func (l *killTest) enqueueShortJobs(clientName string) {
	a := &testrig.Requester{TargetQueue: l.Harness}
	for n := 0; !l.stopRequested.Load(); n++ {
		// No job uses the exit code 1, because on Windows a killed process has that code.
		j := testrig.LedgerJob{OutputBytes: 10, OutputOffset: 10 * (n % 1000), ExitCode: 3 * (n % 3)}
		if n%10 == 3 {
			j.OutputBytes = 60 << 10
		}
		if n%40 == 5 {
			j.OutputBytes = 3 << 20
		}
		if err := l.EnqueueUntilAcknowledged(a, fmt.Sprintf("%s%05d", clientName, n), j); err != nil {
			l.failures <- err
			return
		}
		for l.backlogJobCount() > 100 && !l.stopRequested.Load() {
			time.Sleep(2 * time.Millisecond) // let the workers catch up
		}
	}
}

// keepLongJobsRunning keeps about three long jobs running until the load stops.
func (l *killTest) keepLongJobsRunning() {
	a := &testrig.Requester{TargetQueue: l.Harness}
	for n := 0; !l.stopRequested.Load(); n++ {
		if err := l.EnqueueUntilAcknowledged(a, fmt.Sprintf("L%05d", n),
			testrig.LedgerJob{OutputBytes: 60 << 10, OutputOffset: 10 * n, RunSeconds: 1 +
				n%3}); err != nil {
			l.failures <- err
			return
		}
		for next := time.Now().Add(600 * time.Millisecond); time.Now().Before(next) && !l.stopRequested.Load(); {
			time.Sleep(5 * time.Millisecond) // wait in short steps, to notice soon when the load must stop
		}
	}
}

// backlogJobCount returns the approximate number of acknowledged jobs that have not ended.
func (l *killTest) backlogJobCount() int {
	info, err := os.Stat(filepath.Join(l.StateDir, "ledger"))
	if err != nil {
		return 0
	}
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return len(l.AcknowledgedJobs) - int(info.Size()/testrig.LedgerEntryBytes/2)
}

// killServiceAtFailpoint starts a service that is killed when it reaches the failpoint. If failpoint is "",
// killServiceAtFailpoint kills the service after a time that depends on killNumber. It also checks that the new service
// has found the running jobs of the previous one.
func (l *killTest) killServiceAtFailpoint(failpoint string, killNumber int) {
	l.Helper()
	l.KillService()
	before := l.runningLongJobPIDs()
	l.ServiceEnv = nil
	if failpoint != "" {
		l.ServiceEnv = []string{fmt.Sprintf("QUEUECTL_FAILPOINTS=%s=kill:%d", failpoint, 1+7*killNumber%12)}
	}
	started := time.Now()
	if err := l.TryStartService("--workers", "6"); err != nil {
		if failpoint == "" || !l.WaitForFailpointKill(time.Second) {
			l.Fatalf("start: %v\n%s", err, l.ServiceLog)
		}
		l.killsByFailpoint[failpoint]++
		return
	}
	l.serviceStartDurations = append(l.serviceStartDurations, time.Since(started))
	l.checkLongJobsAdopted(before)
	if failpoint == "" {
		time.Sleep(time.Duration(5+37*killNumber%140) * time.Millisecond) // the time of the kill differs between the services
		l.KillService()
	} else if !l.WaitForFailpointKill(3 * time.Second) {
		l.KillService()
		failpoint = "" // the failpoint was not reached in time, so killServiceAtFailpoint has killed the service
	}
	l.killsByFailpoint[failpoint]++
}

// killDuringLongJob kills a service while at least one long job is running, by calling killServiceAtFailpoint.
func (l *killTest) killDuringLongJob(killNumber int) {
	l.Helper()
	l.KillService()
	l.ServiceEnv = nil
	l.StartService("--workers", "6")
	l.WaitUntil("a long job is running", 20*time.Second, func() bool { return len(l.runningLongJobPIDs()) > 0 })
	l.killServiceAtFailpoint("", killNumber)
}

// runningLongJobPIDs returns the pids of the long jobs that are running, by the tag (name) of the job.
func (l *killTest) runningLongJobPIDs() map[string]int {
	l.Helper()
	run := map[string]int{}
	for _, n := range l.ReadLedger() {
		if n.Kind == "S" && n.JobTag[0] == 'L' && testrig.IsProcessAlive(n.PID) {
			run[n.JobTag] = n.PID
		}
		if n.Kind == "E" {
			delete(run, n.JobTag)
		}
	}
	return run
}

// checkLongJobsAdopted checks that the new service knows the long jobs that were running when the old service was
// killed. oldPIDsByTag contains the pids of these jobs, by tag.
func (l *killTest) checkLongJobsAdopted(oldPIDsByTag map[string]int) {
	l.Helper()
	listed, err := (&testrig.Requester{TargetQueue: l.Harness}).ListAllJobs("processing")
	if err != nil {
		return // the failpoint has already killed the service
	}
	pids := map[string]int{}
	for _, j := range listed {
		pids[j.ID] = j.PID
	}
	after := l.runningLongJobPIDs()
	for tag, pid := range oldPIDsByTag {
		l.Mu.Lock()
		id := l.AcknowledgedJobs[tag].ID
		l.Mu.Unlock()
		switch {
		case id != "" && pids[id] == pid:
			l.adoptedJobCount++
		case id != "" && after[tag] == pid:
			l.Errorf("long job %s runs as %d; the new service says %d", tag, pid, pids[id])
		}
	}
}

// waitUntilJobsEnd waits until every job whose enqueue was acknowledged has ended.
func (l *killTest) waitUntilJobsEnd() {
	l.Helper()
	l.WaitUntil("all jobs ended", 90*time.Second, func() bool {
		return l.QueryDatabaseInt(`SELECT count(*) FROM jobs WHERE state < 6`) == 0
	})
	if n := l.QueryDatabaseInt(`SELECT count(*) FROM jobs`); n != len(l.AcknowledgedJobs) {
		l.Errorf("%d jobs are stored, %d were acknowledged", n, len(l.AcknowledgedJobs))
	}
	if n := l.QueryDatabaseInt(`SELECT max(seq) - min(seq) + 1 - count(*) FROM events`); n != 0 {
		l.Errorf("the events have %d gaps", n)
	}
	for _, kind := range []string{"enqueued", "ended"} {
		if n := l.QueryDatabaseInt(`SELECT count(*) FROM (SELECT job FROM events WHERE kind = '` + kind +
			`' GROUP BY job HAVING count(*) = 1) AS once`); n != len(l.AcknowledgedJobs) {
			l.Errorf("%d jobs have one event %s, want %d", n, kind, len(l.AcknowledgedJobs))
		}
	}
}

// checkJobResults compares every job with the ledger (the notes that the jobs wrote), and its stored output with
// the output that it printed.
func (l *killTest) checkJobResults() {
	l.Helper()
	l.CheckNoOverlappingAttempts()
	starts, ends := l.CountLedgerEntries("S"), l.CountLedgerEntries("E")
	if len(starts) != len(l.AcknowledgedJobs) {
		l.Errorf("%d jobs started, %d were acknowledged", len(starts), len(l.AcknowledgedJobs))
	}
	a := &testrig.Requester{TargetQueue: l.Harness}
	jobs, err := a.ListAllJobs("")
	if err != nil {
		l.Fatal(err)
	}
	byID := map[string]testrig.Job{}
	for _, j := range jobs {
		byID[j.ID] = j
	}
	sizes := map[int]int{}
	for tag, want := range l.AcknowledgedJobs {
		state := "completed"
		if want.ExitCode != 0 {
			state = "dead"
		}
		got := byID[want.ID]
		if starts[tag] != 1 || ends[tag] != 1 || got.State != state || got.AttemptCount != 1 || got.ExitCode == nil ||
			*got.ExitCode != want.ExitCode {
			code := -1
			if got.ExitCode != nil {
				code = *got.ExitCode
			}
			l.Errorf("%s (%s): started %d times, ended %d times, %s, attempts %d, exit code %d, %q; want once, "+
				"%s, 1, %d; it said %q",
				tag, want.ID, starts[tag], ends[tag], got.State, got.AttemptCount, code, got.Error, state, want.ExitCode,
				l.ShowJob(want.ID).Stderr)
		}
		out, err := a.JobStdout(want.ID)
		if err != nil || !bytes.Equal(out, l.NumbersFileContent[want.OutputOffset:want.OutputOffset+want.OutputBytes]) {
			l.Errorf("%s (%s): output of %d bytes is not the %d bytes printed: %v", tag, want.ID, len(out), want.OutputBytes,
				err)
		}
		sizes[want.OutputBytes]++
	}
	if len(sizes) != 3 {
		l.Errorf("outputs by size %v, want three sizes", sizes)
	}
}

// checkNoProcessLeft checks that no process of a job remains, that the service and its runner end, and that the
// service has acknowledged all results.
func (l *killTest) checkNoProcessLeft() {
	l.Helper()
	if s := l.StrayProcesses(); len(s) > 0 {
		l.Errorf("stray processes: %v", s)
	}
	if code := l.Harness.StopService(); code != 0 {
		l.Errorf("stopped with exit code %d", code)
	}
	l.WaitUntil("the runner ended", 5*time.Second, func() bool { return len(l.RunnerPIDs()) == 0 })
	remaining, _ := filepath.Glob(filepath.Join(l.StateDir, "runner", "[0-9]*"))
	if len(remaining) > 0 {
		l.Errorf("runner directories with results that were not acknowledged: %v", remaining)
	}
}
