package durability

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
	"github.com/queuectl/queuectl/test/pgserver"
)

// newPostgresQueue returns a queue whose database is on a new PostgreSQL server.
func newPostgresQueue(t *testing.T) (*testrig.Harness, *pgserver.Server) {
	p := pgserver.New(t)
	t.Cleanup(p.StopAndRemove)
	q := testrig.NewHarness(t, "")
	q.StoreURL = p.DatabaseURL("postgres")
	return q, p
}

// If a service is killed, it loses no job and runs no job twice, also if its database is on a PostgreSQL
// server.
func TestServiceKilledOnPostgresLosesNoJob(t *testing.T) {
	t.Parallel()
	p := pgserver.New(t)
	t.Cleanup(p.StopAndRemove)
	checkServiceKills(t, 10, p.DatabaseURL("postgres"))
}

// If the PostgreSQL server is killed repeatedly under load, no acknowledged job is lost and no job
// runs twice. While the service waits for the server, it returns errors to clients.
func TestKilledDatabaseServerLosesNoAcknowledgedJob(t *testing.T) {
	t.Parallel()
	p := pgserver.New(t)
	t.Cleanup(p.StopAndRemove)
	l := &killTest{LedgerQueue: testrig.NewLedgerQueue(t, ""), killsByFailpoint: map[string]int{},
		failures: make(chan error, 8)}
	l.StoreURL = p.DatabaseURL("postgres")
	l.StartService("--workers", "6")
	pid := l.ServiceCmd.Process.Pid
	for i := range 4 {
		l.clients.Go(func() { l.enqueueShortJobs(string(rune('a' + i))) })
	}
	l.clients.Go(l.keepLongJobsRunning)
	for n := range 6 {
		time.Sleep(time.Duration(300+170*n) * time.Millisecond) // this pause varies the time of the kill
		p.Kill()
		p.Start(t)
	}
	l.stopRequested.Store(true)
	l.clients.Wait()
	close(l.failures)
	for err := range l.failures {
		t.Error(err)
	}
	l.waitUntilJobsEnd()
	l.checkJobResults()
	if l.ServiceCmd.Process.Pid != pid || l.WaitForFailpointKill(0) {
		t.Errorf("the service ended:\n%s", l.ServiceLog)
	}
	l.checkNoProcessLeft()
	t.Logf("%d jobs, requests repeated %d, of them known %d", len(l.AcknowledgedJobs), l.ResentRequestCount,
		l.RecognisedDuplicateCount)
}

// While the PostgreSQL server is down, running jobs continue, and clients get an error in time. When the server
// is back, the queue works again. A second service with the same node name cannot start, before or after the outage.
func TestJobsContinueDuringDatabaseOutage(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	q, p := newPostgresQueue(t)
	q.StartService("--workers", "2")
	q.MustRunCLI("enqueue", "--id", "long", "while [ ! -e "+q.Path("go")+" ]; do sleep 0.05; done; echo done")
	q.WaitUntil("the job runs", 20*time.Second, func() bool {
		return strings.Contains(q.MustRunCLI("list", "-s", "processing"), "long")
	})
	other := testrig.NewHarness(t, "")
	other.StoreURL = q.StoreURL
	if err := other.TryStartService(); err == nil || !strings.Contains(fmt.Sprint(err),
		"another service already runs as node") {
		t.Errorf("a second service of the same name: %v", err)
	}
	p.Kill()
	started := time.Now()
	r := q.RunCLI("enqueue", "--id", "late", "true")
	if r.ExitCode == 0 || !strings.Contains(r.Stderr, "cannot be reached") || time.Since(started) > 10*time.Second {
		t.Errorf("enqueue without the server: %+v after %v", r, time.Since(started))
	}
	q.WriteFile("go", "")
	p.Start(t)
	q.MustRunCLI("wait", "--timeout", "20s", "long")
	q.MustRunCLI("run", "--", "true")
	if out := q.MustRunCLI("logs", "long"); out != "done" {
		t.Errorf("output %q", out)
	}
	if code := q.StopService(); code != 0 {
		t.Errorf("stopped with %d:\n%s", code, q.ServiceLog)
	}
	doctor := func() testrig.CommandResult {
		cmd := q.CLICommand("doctor")
		cmd.Env = append(cmd.Env, "QUEUECTL_STORE="+q.StoreURL)
		return testrig.RunCommand(t, cmd)
	}
	if r := doctor(); !strings.Contains(r.Stdout, "PostgreSQL") || strings.Contains(r.Stdout, "FAILURE  database") {
		t.Errorf("doctor, without the service: %+v", r)
	}
	p.Kill()
	if r := doctor(); !strings.Contains(r.Stdout, "FAILURE  database") ||
		!strings.Contains(r.Stdout, "cannot be reached") {
		t.Errorf("doctor, without the server: %+v", r)
	}
	p.Start(t)
}

// While the PostgreSQL server is frozen, clients get an error within a bounded time. If a request to enqueue a job
// fails in this way, the job is stored once or not at all after the database server continues. The service keeps
// running.
func TestRequestsToFrozenDatabaseFailInTime(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	q, p := newPostgresQueue(t)
	q.StartService("--workers", "2")
	q.MustRunCLI("run", "--", "true")
	p.SetFrozen(true)
	t.Cleanup(func() { p.SetFrozen(false) })
	started := time.Now()
	for _, verb := range [][]string{{"enqueue", "--id", "late", "--key", "once", "true"}, {"list"}} {
		if r := q.RunCLI(verb...); r.ExitCode == 0 || !strings.Contains(r.Stderr, "try again later") ||
			time.Since(started) > 60*time.Second {
			t.Errorf("%v while the server is frozen: %+v after %v", verb, r, time.Since(started))
		}
	}
	p.SetFrozen(false)
	q.MustRunCLI("enqueue", "--id", "late", "--key", "once", "true")
	q.MustRunCLI("wait", "--timeout", "20s", "late")
	if q.WaitForFailpointKill(0) {
		t.Errorf("the service ended:\n%s", q.ServiceLog)
	}
}

// While the disk of the PostgreSQL server is full, clients get an error, and no job of a failed
// request is stored. Running jobs continue. When the disk has space again, the queue works.
func TestFullDatabaseDiskStoresNoFailedRequest(t *testing.T) {
	skip.UnlessRoot(t, "needs root to mount a disk; .ci/run runs it as root")
	q := testrig.NewHarness(t, "")
	disk, err := os.MkdirTemp("", "queuectl-pg")
	if err == nil {
		err = errors.Join(os.Chmod(disk, 0o755), syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=160m,mode=755"))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(testrig.Unmount(disk), os.Remove(disk)); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("TMPDIR", disk)
	p := pgserver.New(t, "max_wal_size=32MB", "min_wal_size=32MB")
	t.Cleanup(p.StopAndRemove)
	q.StoreURL = p.DatabaseURL("postgres")
	q.StartService("--workers", "2")
	q.MustRunCLI("enqueue", "--id", "long", testrig.CommandWaitingForFile(q.Path("go"))+"; echo done")
	pid := q.DialService().WaitJobRunning("long").PID
	filler, err := os.Create(filepath.Join(disk, "filler"))
	for chunk := make([]byte, 1<<20); err == nil; {
		_, err = filler.Write(chunk)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	filler.Close()
	big := strings.Repeat("x", 100<<10)
	outcome, stored := testrig.CommandResult{}, 0
	for n := 0; n < 400 && outcome.ExitCode == 0; n++ {
		if outcome = q.RunCLI("enqueue", "--id", fmt.Sprint("big", n), "--in", "1h", "--command",
			": "+big[n:]); outcome.ExitCode == 0 {
			stored++
		}
	}
	if outcome.ExitCode == 0 || !strings.Contains(outcome.Stderr, "try again") {
		t.Fatalf("on a full disk, after %d jobs: %+v", stored, outcome)
	}
	t.Logf("after %d jobs of 100 KiB: %s", stored, outcome.Stderr)
	if err := os.Remove(filler.Name()); err != nil {
		t.Fatal(err)
	}
	// A PostgreSQL server that has no space for its WAL stops.
	if _, err := pgserver.TryQuery(q.StoreURL, "SELECT 1"); err != nil {
		p.Kill()
		p.Start(t)
	}
	q.WaitUntil("the service runs jobs again", 30*time.Second,
		func() bool { return q.RunCLI("run", "--", "true").ExitCode == 0 })
	if j := q.DialService().ShowJob("long"); j.State != "processing" || j.PID != pid {
		t.Errorf("the running job is %s with pid %d, was %d", j.State, j.PID, pid)
	}
	if got := strings.Count(q.MustRunCLI("list", "-q", "-s", "pending"), "big"); got != stored {
		t.Errorf("%d of the large jobs are stored, and %d were acknowledged", got, stored)
	}
	q.WriteFile("go", "")
	q.MustRunCLI("wait", "--timeout", "20s", "long")
	if q.WaitForFailpointKill(0) {
		t.Errorf("the service ended:\n%s", q.ServiceLog)
	}
}

// While the database server is read-only, `queuectl status --check` and `queuectl doctor` report that the node cannot
// renew its node lease. The two commands do not advise removing the node.
func TestReadOnlyDatabaseIsReportedAsLeaseFailure(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	q, p := newPostgresQueue(t)
	q.StartService("--workers", "2")
	q.MustRunCLI("run", "--", "true")
	set := func(value string) {
		for _, sql := range []string{"ALTER SYSTEM SET default_transaction_read_only = " + value, "SELECT pg_reload_conf()"} {
			url := p.DatabaseURL("postgres") + "&options=-c%20default_transaction_read_only%3Doff"
			if _, err := pgserver.TryQuery(url, sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	set("on")
	trouble := "this node cannot renew its right to run jobs (node lease): "
	q.WaitUntil("the read-only server is reported", 60*time.Second, func() bool {
		got := q.RunCLI("status", "--check")
		if strings.Contains(got.Stdout, "node rm") {
			t.Fatalf("the node advises to remove itself: %s", got.Stdout)
		}
		return got.ExitCode == 2 && strings.HasPrefix(got.Stdout, "failing: "+trouble) &&
			strings.Contains(got.Stdout, "; check the database server")
	})
	if got := q.RunCLI("doctor"); got.ExitCode != 1 || !strings.Contains(got.Stdout, "FAILURE  work         "+trouble) ||
		strings.Contains(got.Stdout, "node rm") {
		t.Errorf("doctor: %+v", got)
	}
	set("off")
	q.WaitUntil("the node is healthy again", 60*time.Second,
		func() bool { return q.RunCLI("status", "--check").ExitCode == 0 })
	q.MustRunCLI("run", "--", "true")
}

// A queue can be moved to a server and back while one of its jobs runs. The queue keeps the job, its history
// and its outputs. After a move, a service refuses to start on the old store.
func TestMovingQueueBetweenStoresKeepsRunningJob(t *testing.T) {
	t.Parallel()
	p := pgserver.New(t)
	t.Cleanup(p.StopAndRemove)
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "2", "--keep-jobs")
	q.MustRunCLI("run", "--id", "before", "--", "echo", "first")
	q.MustRunCLI("enqueue", "--id", "long", testrig.CommandWaitingForFile(q.Path("go"))+"; echo last")
	w := q.DialService()
	pid := w.WaitJobRunning("long").PID
	url := q.WriteFile("store", p.DatabaseURL("postgres")+"\n")
	if r := q.RunCLI("migrate", "--to-file", url); r.ExitCode != 5 || !strings.Contains(r.Stderr, "service stop") {
		t.Errorf("migrate while the service runs: %+v", r)
	}
	q.MustRunCLI("worker", "scale", "0")
	q.MustRunCLI("enqueue", "--id", "waits", "echo after")
	if code := q.StopService(); code != 0 {
		t.Fatalf("stopped with %d", code)
	}
	if r := q.RunCLI("migrate"); r.ExitCode != 2 || !strings.Contains(r.Stderr, "--to") {
		t.Errorf("migrate without a target: %+v", r)
	}
	if r := q.RunCLI("migrate", "--to", "sqlite", "--to-file", url); r.ExitCode != 2 ||
		!strings.Contains(r.Stderr, "cannot be combined") {
		t.Errorf("migrate to two targets: %+v", r)
	}
	if r := q.RunCLI("migrate", "--to", "sqlite"); r.ExitCode != 2 {
		t.Errorf("migrate to the current store: %+v", r)
	}
	if out := q.MustRunCLI("migrate", "--to-file", url, "--json"); !strings.Contains(out, `"jobs":3,`) {
		t.Errorf("migrate printed %s", out)
	}
	if err := q.TryStartService(); err == nil || !strings.Contains(fmt.Sprint(err), "has moved") {
		t.Errorf("start with the store that has moved: %v", err)
	}
	q.StoreURL = p.DatabaseURL("postgres")
	q.StartService("--workers", "2", "--keep-jobs")
	w = q.DialService()
	if j := w.ShowJob("long"); j.State != "processing" || j.PID != pid {
		t.Errorf("the running job is %s with pid %d, was %d", j.State, j.PID, pid)
	}
	q.WriteFile("go", "")
	q.MustRunCLI("wait", "--timeout", "20s", "long", "waits")
	for id, out := range map[string]string{"before": "first", "long": "last", "waits": "after"} {
		if got := q.MustRunCLI("logs", id); !strings.HasSuffix(got, out) {
			t.Errorf("%s printed %q", id, got)
		}
	}
	if code := q.StopService(); code != 0 {
		t.Fatalf("stopped with %d", code)
	}
	oldStore := q.StoreURL
	q.StoreURL = ""
	q.MustRunCLI("migrate", "--from", oldStore, "--to", "sqlite")
	q.StartService("--workers", "2")
	if out := q.MustRunCLI("logs", "long"); !strings.HasSuffix(out, "last") {
		t.Errorf("after the move back, the output of job long is %q", out)
	}
	q.MustRunCLI("run", "--", "true")
}

// If the settings name another store, the service starts with the jobs of that store. When the settings name the first
// store again, the service finds the jobs of the first store. While a runner still has jobs or results of one store,
// the service refuses to start with another.
func TestServiceSwitchesStoresWithoutMixingJobs(t *testing.T) {
	t.Parallel()
	p := pgserver.New(t)
	t.Cleanup(p.StopAndRemove)
	q := testrig.NewHarness(t, "")
	url := p.DatabaseURL("postgres")
	for range 3 { // each start raises the epoch (number of the service start) above that of an empty store
		q.StartService("--workers", "2", "--keep-jobs")
		q.MustRunCLI("run", "--", "true")
		if code := q.StopService(); code != 0 {
			t.Fatalf("stopped with %d", code)
		}
	}
	q.StoreURL = url
	q.StartService("--workers", "2", "--keep-jobs")
	if out := q.MustRunCLI("run", "--id", "there", "--", "echo", "here"); out != "here" {
		t.Errorf("a job on the PostgreSQL server printed %q", out)
	}
	q.MustRunCLI("enqueue", "--id", "long", testrig.CommandWaitingForFile(q.Path("go"))+"; echo last")
	pid := q.DialService().WaitJobRunning("long").PID
	if code := q.StopService(); code != 0 {
		t.Fatalf("stopped with %d", code)
	}
	q.StoreURL = ""
	if err := q.TryStartService(); err == nil || !strings.Contains(fmt.Sprint(err), "jobs of the previous store") ||
		!strings.Contains(fmt.Sprint(err), "migrate") {
		t.Errorf("start while a job of the other store runs: %v", err)
	}
	q.StoreURL = url
	q.StartService("--workers", "2", "--keep-jobs")
	w := q.DialService()
	if j := w.ShowJob("long"); j.State != "processing" || j.PID != pid {
		t.Errorf("the running job is %s with pid %d, was %d", j.State, j.PID, pid)
	}
	q.WriteFile("go", "")
	q.MustRunCLI("wait", "--timeout", "20s", "long")
	if code := q.StopService(); code != 0 {
		t.Fatalf("stopped with %d", code)
	}
	q.StoreURL = ""
	q.StartService("--workers", "2", "--keep-jobs")
	if r := q.RunCLI("show", "there"); r.ExitCode != 4 {
		t.Errorf("show of a job of the other store: %+v", r)
	}
	q.MustRunCLI("enqueue", "--id", "ends", "echo ran >>"+q.Path("runs")+"; "+testrig.CommandWaitingForFile(q.Path("end")))
	pid = q.DialService().WaitJobRunning("ends").PID
	if code := q.StopService(); code != 0 {
		t.Fatalf("stopped with %d", code)
	}
	q.WriteFile("end", "")
	q.WaitUntil("it ends while no service runs", 20*time.Second, func() bool { return syscall.Kill(pid, 0) != nil })
	q.StoreURL = url
	if err := q.TryStartService(); err == nil || !strings.Contains(fmt.Sprint(err), "jobs of the previous store") {
		t.Errorf("start while the result of a job of the other store is not stored yet: %v", err)
	}
	q.StoreURL = ""
	q.StartService("--workers", "2", "--keep-jobs")
	q.MustRunCLI("wait", "--timeout", "20s", "ends")
	if raw, err := os.ReadFile(q.Path("runs")); err != nil || string(raw) != "ran\n" {
		t.Errorf("the file of the job contains %q, %v", raw, err)
	}
}

// The output files of a queue are kept while the service uses another store with the same state directory. The
// service removes a file that belongs to no attempt only if the file was written after the switch to the
// current store.
func TestOutputsStayWhileAnotherStoreIsUsed(t *testing.T) {
	t.Parallel()
	p := pgserver.New(t)
	t.Cleanup(p.StopAndRemove)
	q := testrig.NewHarness(t, "")
	logs := map[string]string{}
	use := func(store, id string) {
		t.Helper()
		q.StoreURL = store
		q.StartService("--workers", "1")
		if logs[id] == "" {
			q.MustRunCLI("run", "--id", id, "--", "sh", "-c", "seq 30000 | sed s/^/"+id+"/")
			logs[id] = q.MustRunCLI("logs", id)
		}
		q.StopService()
		orphan := q.WriteFile(filepath.Join("runner", "output", "99-7"), "")
		q.StartService("--workers", "1")
		q.WaitUntil("the file without an attempt is removed", 20*time.Second, func() bool {
			_, err := os.Stat(orphan)
			return err != nil
		})
		if got := q.RunCLI("logs", id); strings.TrimSpace(got.Stdout) != logs[id] || got.ExitCode != 0 {
			t.Errorf("logs of %s: exit code %d, %d bytes, %s; want %d bytes", id, got.ExitCode, len(got.Stdout), got.Stderr,
				len(logs[id]))
		}
		if got := q.RunCLI("doctor", "--verify"); strings.Contains(got.Stdout, "FAILURE") {
			t.Errorf("doctor --verify: %s", got.Stdout)
		}
		q.StopService()
	}
	for range 2 {
		use("", "here")
		use(p.DatabaseURL("postgres"), "there")
	}
	use("", "here")
	for _, name := range []string{"queuectl.db", "queuectl.db-wal", "queuectl.db-shm", "initialized"} {
		if err := os.Rename(q.Path(name), q.Path(name+".away")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	use("", "new")
	for _, name := range []string{"queuectl.db", "queuectl.db-wal", "queuectl.db-shm", "initialized"} {
		os.Remove(q.Path(name))
		if err := os.Rename(q.Path(name+".away"), q.Path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	use("", "here")
}
