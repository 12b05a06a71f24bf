package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// TestMain runs the tests. If the environment variable QUEUECTL_TEST_HOLD is set, the test program instead
// opens a database and keeps it open, as another program would.
func TestMain(m *testing.M) {
	if path := os.Getenv("QUEUECTL_TEST_HOLD"); path != "" {
		c, err := sqlitedb.Open(path, `busy_timeout = 20`)
		for sql := range strings.SplitSeq(os.Getenv("QUEUECTL_TEST_SQL"), ";") {
			if err == nil {
				err = c.Exec(sql)
			}
		}
		fmt.Println(err)
		io.Copy(io.Discard, os.Stdin) // wait until the test closes the pipe
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// startLockingProgram starts another program that begins a write transaction on a database and so locks it. output is
// the result that the program prints. stop ends the program.
func startLockingProgram(t *testing.T, path string) (output string, stop func()) {
	t.Helper()
	return startSQLProgram(t, path, `BEGIN IMMEDIATE`)
}

// startSQLProgram starts another program that executes SQL statements on a database and then keeps it open. output is
// what the program prints. stop ends the program.
func startSQLProgram(t *testing.T, path, sql string) (output string, stop func()) {
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
	t.Cleanup(stop) // end the program even if the test ends early
	buf := make([]byte, 4096)
	n, _ := out.Read(buf)
	return strings.TrimSpace(string(buf[:n])), stop
}

// While another program locks the database, requests fail and nothing is stored. After the lock is
// released, requests succeed again.
func TestAnotherWriterMakesTheStoreUnavailable(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	enqueueJobs(t, s, 1)
	s.RunAndCommit(t.Context(), engine.UrgentClass, func(tx *engine.Tx) error {
		err := tx.Exec(`PRAGMA busy_timeout = 20`) // the usual five seconds of waiting are too long for a test
		return err
	})
	said, stop := startLockingProgram(t, filepath.Join(dir, sqlitedb.DatabaseFileName))
	if said != "<nil>" {
		t.Fatalf("the other program got %s", said)
	}
	_, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft()}})
	if !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("got %v, want %v", err, queue.ErrUnavailable)
	}
	stop()
	if got := s.Counts().JobsEverEnqueued; got != 1 {
		t.Errorf("got %d jobs, want 1", got)
	}
	if r := enqueueJobs(t, s, 1); r.Seqs[0] != 2 {
		t.Errorf("got seq %d, want 2: the refused job used none", r.Seqs[0])
	}
}

// If this process closes another descriptor of the database during a transaction, the database stays locked,
// and no other program can write.
func TestClosingDescriptorKeepsTransactionLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), sqlitedb.DatabaseFileName)
	s := openStore(t, filepath.Dir(path))
	inTransaction(t, s, func() error {
		// Do not open the -shm file here: closing it would release the locks of this process on it.
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		f.Close()
		said, stop := startLockingProgram(t, path)
		stop()
		if !strings.Contains(said, "locked") && !strings.Contains(said, fmt.Sprint(sqlite3.SQLITE_BUSY)) {
			t.Errorf("another program began to write in a transaction: %s", said)
		}
		return nil
	})
}

// inTransaction calls operation within a write transaction.
func inTransaction(t *testing.T, s *Store, operation func() error) {
	t.Helper()
	err := s.RunAndCommit(t.Context(), engine.UrgentClass, func(tx *engine.Tx) error {
		if err := tx.EnsureBegun(); err != nil {
			return err
		}
		return operation()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// On a full disk, new jobs are refused, but results of running jobs are recorded. Once there is space, new
// jobs are accepted again.
func TestFullDiskRefusesNewJobsOnly(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueueJobs(t, s, 1)
	var free atomic.Int64
	free.Store(sqlitedb.MinFreeBytesForNewJobs - 1)
	s.RunAndCommit(t.Context(), engine.UrgentClass, func(*engine.Tx) error { // force a new check of the free space
		s.freeDiskBytes, s.lastSpaceCheck = func() (int64, error) { return free.Load(), nil }, spaceCheckResult{}
		return nil
	})
	add := func() error {
		_, err := s.Enqueue(t.Context(),
			store.EnqueueRequest{Drafts: []queue.Job{newDraft(func(j *queue.Job) { j.ID = "new" })}})
		return err
	}
	if err := add(); !errors.Is(err, queue.ErrNoSpace) {
		t.Fatalf("got %v, want %v", err, queue.ErrNoSpace)
	}
	turned, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 1})
	if err != nil || len(turned.ClaimedJobs) != 1 {
		t.Fatalf("claimed %v, %v, want the old job", turned.ClaimedJobs, err)
	}
	done := queue.AttemptDecision{NextState: queue.Completed, CountsTowardMaxAttempts: true, RecordsAttempt: true}
	if _, err := s.ReportAndClaim(t.Context(),
		store.LeaseReport{Settlements: []store.Settlement{{Lease: turned.ClaimedJobs[0].Lease(),
			Decision: done}}}); err != nil {
		t.Fatal(err)
	}
	if c := s.Counts().JobsByState; c[queue.Completed] != 1 {
		t.Errorf("got states %v, want one completed", c)
	}
	free.Store(sqlitedb.MinFreeBytesForNewJobs)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if err = add(); err == nil || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		t.Errorf("got %v when there is space again, want none", err)
	}
}
