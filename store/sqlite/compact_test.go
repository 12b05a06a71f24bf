package sqlite

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/integrity"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// completeLargeJobs stores n jobs with an input of half a MiB each, and completes them.
func completeLargeJobs(t *testing.T, s *Store, n int) {
	t.Helper()
	for range n {
		j := newDraft(func(j *queue.Job) { j.Stdin = strings.Repeat("x", 512<<10) })
		if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{j}}); err != nil {
			t.Fatal(err)
		}
		g, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 1})
		if err != nil || len(g.ClaimedJobs) != 1 {
			t.Fatalf("claimed %d jobs, %v", len(g.ClaimedJobs), err)
		}
		report := store.LeaseReport{Settlements: []store.Settlement{completedSettlement(&g.ClaimedJobs[0])}}
		if _, err := s.ReportAndClaim(t.Context(), report); err != nil {
			t.Fatal(err)
		}
	}
}

// purgeAll removes the jobs that have completed.
func purgeAll(t *testing.T, s *Store) {
	t.Helper()
	for n := 1; n > 0; {
		var err error
		if n, err = s.PurgeEndedJobs(t.Context(), store.EndedJobFilter{States: []queue.State{queue.Completed},
			EndedBefore: s.Now() + 1}, 100,
			nil); err != nil {
			t.Fatal(err)
		}
	}
}

func compactOneStep(t *testing.T, s *Store) (wait time.Duration) {
	t.Helper()
	err := s.RunBetweenTransactions(t.Context(), func() (err error) {
		wait, err = s.runCompactStep()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return wait
}

// compactUntilDone does compaction steps until there is nothing to do, and returns their number.
func compactUntilDone(t *testing.T, s *Store) (steps int) {
	t.Helper()
	for compactOneStep(t, s) != compactIdlePause {
		if steps++; steps > 100_000 {
			t.Fatal("compaction does not end")
		}
	}
	return steps
}

// databaseFileSize returns the size of a database file. nameSuffix is the end of its name, such as "-wal".
func databaseFileSize(t *testing.T, s *Store, nameSuffix string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(s.stateDir, sqlitedb.DatabaseFileName+nameSuffix))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// A mostly free database shrinks in steps of a bounded number of pages. Compaction affects neither the
// remaining jobs nor a reader that began before it.
func TestCompactShrinksMostlyFreeDatabase(t *testing.T) {
	s := openStore(t, t.TempDir())
	completeLargeJobs(t, s, 80)
	kept := enqueueJobs(t, s, 50)
	if steps := compactUntilDone(t, s); steps > 2 {
		t.Errorf("%d steps on a database that is full of jobs, want none", steps)
	}
	purgeAll(t, s)
	was := databaseFileSize(t, s, "")
	old, err := sqlitedb.OpenWithFlags(s.readerDatabasePath, s.readerOpenFlags, sqlitedb.ReaderPragmas()...)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := old.BeginSnapshot(); err != nil {
		t.Fatal(err)
	}
	before, err := old.QueryNumber(`PRAGMA page_count`)
	if err != nil {
		t.Fatal(err)
	}
	compactOneStep(t, s)
	now, err := sqlitedb.CountPages(s.writerConn)
	if err != nil || before-now.Total < 1 || before-now.Total > maxPagesPerCompactStep {
		t.Errorf("a step took %d pages, %v; want 1 to %d", before-now.Total, err, maxPagesPerCompactStep)
	}
	if seen, err := old.QueryNumber(`PRAGMA page_count`); err != nil || seen != before {
		t.Errorf("a reader that began before sees %d pages, %v; want %d", seen, err, before)
	}
	old.EndSnapshot()
	compactUntilDone(t, s)
	if size := databaseFileSize(t, s, ""); size > was/8 {
		t.Errorf("the file has %d bytes of %d", size, was)
	}
	if err := integrity.CheckDatabasePages(s.writerConn); err != nil {
		t.Error(err)
	}
	for _, id := range kept.IDs {
		if _, err := s.GetJob(t.Context(), id); err != nil {
			t.Errorf("job %s: %v", id, err)
		}
	}
	completeLargeJobs(t, s, 1) // check that the database can still be written
}

// If no page can be cut from the file because it was created without auto_vacuum, compaction
// gives up after one step.
func TestCompactGivesUpWithoutAutoVacuum(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	completeLargeJobs(t, s, 80)
	purgeAll(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	execOnClosedDatabase(t, dir, `PRAGMA journal_mode = delete`, `PRAGMA auto_vacuum = NONE`, `VACUUM`)
	s = openStore(t, dir)
	completeLargeJobs(t, s, 80)
	purgeAll(t, s)
	for _, missing := range []int64{0, 1 << 30} { // without and with a shortage of disk space
		s.freeDiskBytes = func() (int64, error) { return 1<<30 - missing, nil }
		if steps := compactUntilDone(t, s); steps > 3 {
			t.Errorf("%d bytes missing: got %d steps, want at most one, and those that empty the WAL", missing, steps)
		}
	}
}

// New jobs are accepted while the database has free pages for them, even if the disk is full.
func TestFreePagesCountAsFreeSpace(t *testing.T) {
	s := openStore(t, t.TempDir())
	completeLargeJobs(t, s, 24)
	s.freeDiskBytes = func() (int64, error) { return 1 << 20, nil }
	s.lastSpaceCheck = spaceCheckResult{}
	add := func() error {
		s.lastSpaceCheck.checkedAt = time.Time{}
		_, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft()}})
		return err
	}
	if err := add(); !errors.Is(err, queue.ErrNoSpace) {
		t.Fatalf("with a full disk and a full database: %v, want %v", err, queue.ErrNoSpace)
	}
	purgeAll(t, s)
	if err := add(); err != nil {
		t.Errorf("an enqueue with free pages in the database: %v, want no error", err)
	}
	if err := s.DiskSpaceError(); err != nil {
		t.Errorf("status says %v", err)
	}
}

// On a disk that is short of space, the file and its log shrink by the missing amount, even if little of
// the file is free.
func TestCompactFreesMissingDiskSpace(t *testing.T) {
	s := openStore(t, t.TempDir())
	completeLargeJobs(t, s, 20)
	for range 60 {
		j := newDraft(func(j *queue.Job) { j.Stdin = strings.Repeat("x", 512<<10) })
		if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{j}}); err != nil {
			t.Fatal(err)
		}
	}
	disk := func() int64 { return databaseFileSize(t, s, "") + databaseFileSize(t, s, "-wal") }
	all := disk() + sqlitedb.MinFreeBytesForNewJobs
	s.freeDiskBytes = func() (int64, error) { return all - disk(), nil }
	purgeAll(t, s)
	if s.missingDiskBytes() == 0 {
		t.Fatal("nothing is missing")
	}
	compactUntilDone(t, s)
	if left := s.missingDiskBytes(); left > 0 {
		t.Errorf("%d bytes are still missing", left)
	}
	if err := integrity.CheckDatabasePages(s.writerConn); err != nil {
		t.Error(err)
	}
}

// On a disk that is short of space, the write-ahead log is emptied even if the database has no free pages.
func TestCompactEmptiesWALOnNearlyFullDisk(t *testing.T) {
	s := openStore(t, t.TempDir())
	completeLargeJobs(t, s, 10)
	if size := databaseFileSize(t, s, "-wal"); size < 1<<20 {
		t.Fatalf("the log has only %d bytes", size)
	}
	s.freeDiskBytes = func() (int64, error) { return sqlitedb.MinFreeBytesForNewJobs, nil }
	compactUntilDone(t, s)
	if size := databaseFileSize(t, s, "-wal"); size > 0 {
		t.Errorf("the log has %d bytes, want none", size)
	}
}
