package sql

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/sqlitedb"
	"github.com/queuectl/queuectl/test/pgserver"
)

// TestMain runs the tests. If an environment variable is set, it acts as another program that holds a
// database.
func TestMain(m *testing.M) {
	if path := os.Getenv("QUEUECTL_TEST_HOLD"); path != "" {
		c, err := sqlitedb.Open(path, `busy_timeout = 20`)
		for sql := range strings.SplitSeq(os.Getenv("QUEUECTL_TEST_SQL"), ";") {
			if err == nil {
				err = c.Exec(sql)
			}
		}
		fmt.Println(err)
		io.Copy(io.Discard, os.Stdin) // until the test closes the pipe
		os.Exit(0)
	}
	code := m.Run()
	pgserver.StopShared()
	os.Exit(code)
}

// startLockHolder starts another program that begins a write transaction on a database. It returns the
// program's result; stop ends the program.
func startLockHolder(t *testing.T, path string) (said string, stop func()) {
	t.Helper()
	return startOtherProgram(t, path, `BEGIN IMMEDIATE`)
}

// startOtherProgram starts another program that executes statements on a database and then keeps it open.
func startOtherProgram(t *testing.T, path, sql string) (said string, stop func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "QUEUECTL_TEST_HOLD="+path, "QUEUECTL_TEST_SQL="+sql)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		in.Close()
		cmd.Wait()
	}
	t.Cleanup(stop) // in case the test ends early
	buf := make([]byte, 4096)
	n, _ := out.Read(buf)
	return strings.TrimSpace(string(buf[:n])), stop
}

// While another program holds the database, nothing is acknowledged or stored. Once it releases the
// database, requests succeed again.
func TestAnotherWriterMakesTheStoreUnavailable(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	enqueue(t, s, 1)
	s.Do(t.Context(), Urgent, func(tx *Tx) error {
		err := tx.Exec(`PRAGMA busy_timeout = 20`) // the usual five seconds are too long for a test
		return err
	})
	said, stop := startLockHolder(t, filepath.Join(dir, sqlitedb.DatabaseName))
	if said != "<nil>" {
		t.Fatalf("the other program got %s", said)
	}
	_, err := s.Enqueue(t.Context(), store.Request{Drafts: []queue.Job{draft()}})
	if !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("got %v, want %v", err, queue.ErrUnavailable)
	}
	stop()
	if got := s.Counts().Enqueued; got != 1 {
		t.Errorf("got %d jobs, want 1", got)
	}
	if r := enqueue(t, s, 1); r.Seqs[0] != 2 {
		t.Errorf("got seq %d, want 2: the refused job used none", r.Seqs[0])
	}
}

// Closing another descriptor of the database releases no lock: no other program can write during a
// transaction.
func TestLocksSurviveOtherDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), sqlitedb.DatabaseName)
	s := openStore(t, filepath.Dir(path))
	inTransaction(t, s, func() error {
		// The -shm file has locks of the process, so it must never be opened.
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		f.Close()
		said, stop := startLockHolder(t, path)
		stop()
		if !strings.Contains(said, "locked") && !strings.Contains(said, fmt.Sprint(sqlite3.SQLITE_BUSY)) {
			t.Errorf("another program began to write in a transaction: %s", said)
		}
		return nil
	})
}

// inTransaction calls do within a write transaction.
func inTransaction(t *testing.T, s *Store, do func() error) {
	t.Helper()
	err := s.Do(t.Context(), Urgent, func(tx *Tx) error {
		if err := tx.EnsureBegun(); err != nil {
			return err
		}
		return do()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// After the clock jumps by a year in either direction, no job without expires_at expires, no job is lost,
// and no retry starts before its time. Promote never waits for more than an hour.
func TestClockStepsOfAYear(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, step := range []time.Duration{year, -year} {
		s := openStore(t, t.TempDir())
		var now atomic.Int64
		now.Store(1_800_000_000_000)
		s.now = func() queue.Millis { return queue.Millis(now.Load()) }
		enqueue(t, s, 3)
		turned, err := s.Exchange(t.Context(), store.Report{Want: 1})
		if err != nil {
			t.Fatal(err)
		}
		retry := queue.Decision{State: queue.Failed, UsesAttempt: true, Started: true, Delay: 2 * time.Second}
		if _, err := s.Exchange(t.Context(), store.Report{Ended: []store.Settlement{{Lease: turned.Jobs[0].Lease(),
			Decision: retry}}}); err != nil {
			t.Fatal(err)
		}
		now.Add(step.Milliseconds())
		next, err := s.Promote(t.Context())
		if err != nil || next < 0 || next > time.Hour {
			t.Errorf("step %v: Promote said %v, %v, want a time up to an hour", step, next, err)
		}
		c := s.Counts().States
		if c[queue.Cancelled] != 0 || c[queue.Pending] != 2 || c[queue.Failed] != 1 {
			t.Errorf("step %v: got states %v, want 2 pending and 1 failed", step, c)
		}
		turned, err = s.Exchange(t.Context(), store.Report{Want: 9})
		want := 2
		if step > 0 {
			want = 3 // the retry is due
		}
		if err != nil || len(turned.Jobs) != want {
			t.Errorf("step %v: got %d jobs, %v, want %d", step, len(turned.Jobs), err, want)
		}
		var back []queue.Lease
		for i := range turned.Jobs {
			back = append(back, turned.Jobs[i].Lease())
		}
		turned, err = s.Exchange(t.Context(), store.Report{Released: back, Want: 9})
		if err != nil || len(turned.Jobs) != want {
			t.Errorf("step %v: got %d jobs again, %v, want %d", step, len(turned.Jobs), err, want)
		}
		if _, err := s.Oldest(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Concurrent requests share commits.
func TestManyShareCommits(t *testing.T) {
	s := openStore(t, t.TempDir())
	var commits atomic.Int64
	s.now = func() queue.Millis { commits.Add(1); return 1_800_000_000_000 } // read once per transaction
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range 8 {
				if _, err := s.Enqueue(t.Context(), store.Request{Drafts: []queue.Job{draft()}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := s.Counts().Enqueued; got != 64*8 {
		t.Errorf("got %d jobs, want %d", got, 64*8)
	}
	if n := commits.Load(); n > 64*8/4 {
		t.Errorf("%d requests took %d commits, want a quarter at most", 64*8, n)
	}
}

// A claim that fails because the disk is full leases nothing, even if it had already chosen jobs. If the jobs
// stayed leased, they might run twice.
func TestFullDiskClaimsNothing(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueue(t, s, 3)
	<-s.writerToken // prevents commits
	type claim struct {
		jobs []queue.Job
		err  error
	}
	claimed, other := make(chan claim, 1), make(chan error, 1)
	go func() { // ends with the commit
		jobs, err := s.Await(t.Context(), 2)
		claimed <- claim{jobs, err}
	}()
	for s.idle() {
		runtime.Gosched() // until the operation waits
	}
	go func() { // ends with the commit
		other <- s.Do(t.Context(), Urgent, func(*Tx) error { return &sqlitedb.Error{Code: sqlite3.SQLITE_FULL} })
	}()
	for n := 0; n < 2; runtime.Gosched() {
		s.mu.Lock()
		n = len(s.waiting[Urgent])
		s.mu.Unlock()
	}
	s.writerToken <- struct{}{}
	if err := <-other; !errors.Is(err, queue.ErrNoSpace) {
		t.Fatalf("got %v, want %v", err, queue.ErrNoSpace)
	}
	if c := <-claimed; len(c.jobs) > 0 || !errors.Is(c.err, queue.ErrNoSpace) {
		t.Errorf("got %d jobs and %v, want none and %v", len(c.jobs), c.err, queue.ErrNoSpace)
	}
}

// On a full disk, new jobs are refused and the results of running jobs are recorded. Once there is space,
// new jobs are accepted again.
func TestFullDiskRefusesNewJobsOnly(t *testing.T) {
	s := openStore(t, t.TempDir())
	var free atomic.Int64
	free.Store(sqlitedb.MinFreeBytes - 1)
	s.freeSpace = func() (int64, error) { return free.Load(), nil }
	s.Do(t.Context(), Urgent, func(tx *Tx) error { // insert a job as if it was enqueued earlier
		j := draft()
		tx.drafts = []records.Texts{{Terms: `{"command":"true","umask":0,"kill_after":0,"on_lost":"retry","output_limit":0}`}}
		return tx.rules.Insert(&j, 0, 0, 1000, "old")
	})
	add := func() error {
		_, err := s.Enqueue(t.Context(), store.Request{Drafts: []queue.Job{draft(func(j *queue.Job) { j.ID = "new" })}})
		return err
	}
	if err := add(); !errors.Is(err, queue.ErrNoSpace) {
		t.Fatalf("got %v, want %v", err, queue.ErrNoSpace)
	}
	turned, err := s.Exchange(t.Context(), store.Report{Want: 1})
	if err != nil || len(turned.Jobs) != 1 {
		t.Fatalf("claimed %v, %v, want the old job", turned.Jobs, err)
	}
	done := queue.Decision{State: queue.Completed, UsesAttempt: true, Started: true}
	if _, err := s.Exchange(t.Context(), store.Report{Ended: []store.Settlement{{Lease: turned.Jobs[0].Lease(),
		Decision: done}}}); err != nil {
		t.Fatal(err)
	}
	if c := s.Counts().States; c[queue.Completed] != 1 {
		t.Errorf("got states %v, want one completed", c)
	}
	free.Store(sqlitedb.MinFreeBytes)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if err = add(); err == nil || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		t.Errorf("got %v when there is space again, want none", err)
	}
}
