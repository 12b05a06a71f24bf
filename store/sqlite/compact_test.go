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

// enqueueLarge stores n jobs with an input of half a MiB each, and completes them.
func enqueueLarge(t *testing.T, s *Store, n int) {
	t.Helper()
	for range n {
		j := draft(func(j *queue.Job) { j.Stdin = strings.Repeat("x", 512<<10) })
		if _, err := s.Enqueue(t.Context(), store.Request{Drafts: []queue.Job{j}}); err != nil {
			t.Fatal(err)
		}
		g, err := s.Exchange(t.Context(), store.Report{WantedJobs: 1})
		if err != nil || len(g.Jobs) != 1 {
			t.Fatalf("claimed %d jobs, %v", len(g.Jobs), err)
		}
		report := store.Report{Settlements: []store.Settlement{completionOf(&g.Jobs[0])}}
		if _, err := s.Exchange(t.Context(), report); err != nil {
			t.Fatal(err)
		}
	}
}

// purgeAll removes the jobs that have completed.
func purgeAll(t *testing.T, s *Store) {
	t.Helper()
	for n := 1; n > 0; {
		var err error
		if n, err = s.Purge(t.Context(), store.EndedFilter{States: []queue.State{queue.Completed}, Cutoff: s.Now() + 1}, 100,
			nil); err != nil {
			t.Fatal(err)
		}
	}
}

// compactOnce does one compaction step.
func compactOnce(t *testing.T, s *Store) (wait time.Duration) {
	t.Helper()
	err := s.BetweenTx(t.Context(), func() (err error) {
		wait, err = s.compactStep()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return wait
}

// compactAll does compaction steps until there is nothing to do, and returns their number.
func compactAll(t *testing.T, s *Store) (steps int) {
	t.Helper()
	for compactOnce(t, s) != compactIdlePause {
		if steps++; steps > 100_000 {
			t.Fatal("compaction does not end")
		}
	}
	return steps
}

// fileSize returns the size of a database file. suffix is the end of its name, such as "-wal".
func fileSize(t *testing.T, s *Store, suffix string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(s.dir, sqlitedb.DatabaseName+suffix))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// A mostly free database shrinks in steps of a bounded number of pages. Compaction affects neither the
// remaining jobs nor a reader that began before it.
func TestCompactShrinksMostlyFreeDatabase(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueueLarge(t, s, 80)
	kept := enqueue(t, s, 50)
	if steps := compactAll(t, s); steps > 2 {
		t.Errorf("%d steps on a database that is full of jobs, want none", steps)
	}
	purgeAll(t, s)
	was := fileSize(t, s, "")
	old, err := sqlitedb.OpenWithFlags(s.readPath, s.readFlags, sqlitedb.ReaderPragmas()...)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := old.BeginReading(); err != nil {
		t.Fatal(err)
	}
	before, err := old.QueryNumber(`PRAGMA page_count`)
	if err != nil {
		t.Fatal(err)
	}
	compactOnce(t, s)
	now, err := sqlitedb.CountPages(s.conn)
	if err != nil || before-now.Total < 1 || before-now.Total > compactPages {
		t.Errorf("a step took %d pages, %v; want 1 to %d", before-now.Total, err, compactPages)
	}
	if seen, err := old.QueryNumber(`PRAGMA page_count`); err != nil || seen != before {
		t.Errorf("a reader that began before sees %d pages, %v; want %d", seen, err, before)
	}
	old.EndReading()
	compactAll(t, s)
	if size := fileSize(t, s, ""); size > was/8 {
		t.Errorf("the file has %d bytes of %d", size, was)
	}
	if err := integrity.CheckPages(s.conn); err != nil {
		t.Error(err)
	}
	for _, id := range kept.IDs {
		if _, err := s.Get(t.Context(), id); err != nil {
			t.Errorf("job %s: %v", id, err)
		}
	}
	enqueueLarge(t, s, 1) // check that the database can still be written
}

// If no page can be cut from the file because it was created without auto_vacuum, compaction
// gives up after one step.
func TestCompactLeavesFileWithoutAutoVacuum(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	enqueueLarge(t, s, 80)
	purgeAll(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	execOnClosed(t, dir, `PRAGMA journal_mode = delete`, `PRAGMA auto_vacuum = NONE`, `VACUUM`)
	s = openStore(t, dir)
	enqueueLarge(t, s, 80)
	purgeAll(t, s)
	for _, missing := range []int64{0, 1 << 30} { // without and with a shortage of disk space
		s.freeSpace = func() (int64, error) { return 1<<30 - missing, nil }
		if steps := compactAll(t, s); steps > 3 {
			t.Errorf("%d bytes missing: got %d steps, want at most one, and those that empty the WAL", missing, steps)
		}
	}
}

// New jobs are accepted while the database has free pages for them, even if the disk is full.
func TestFreePagesCountAsFreeSpace(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueueLarge(t, s, 24)
	s.freeSpace = func() (int64, error) { return 1 << 20, nil }
	s.lastSpaceCheck = spaceCheck{}
	add := func() error {
		s.lastSpaceCheck.checkedAt = time.Time{}
		_, err := s.Enqueue(t.Context(), store.Request{Drafts: []queue.Job{draft()}})
		return err
	}
	if err := add(); !errors.Is(err, queue.ErrNoSpace) {
		t.Fatalf("with a full disk and a full database: %v, want %v", err, queue.ErrNoSpace)
	}
	purgeAll(t, s)
	if err := add(); err != nil {
		t.Errorf("an enqueue with free pages in the database: %v, want no error", err)
	}
	if err := s.SpaceError(); err != nil {
		t.Errorf("status says %v", err)
	}
}

// On a disk that is short of space, the file and its log shrink by the missing amount, even if little of
// the file is free.
func TestCompactGivesShortDiskItsSpace(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueueLarge(t, s, 20)
	for range 60 {
		j := draft(func(j *queue.Job) { j.Stdin = strings.Repeat("x", 512<<10) })
		if _, err := s.Enqueue(t.Context(), store.Request{Drafts: []queue.Job{j}}); err != nil {
			t.Fatal(err)
		}
	}
	disk := func() int64 { return fileSize(t, s, "") + fileSize(t, s, "-wal") }
	all := disk() + sqlitedb.MinFreeBytes
	s.freeSpace = func() (int64, error) { return all - disk(), nil }
	purgeAll(t, s)
	if s.missingSpace() == 0 {
		t.Fatal("nothing is missing")
	}
	compactAll(t, s)
	if left := s.missingSpace(); left > 0 {
		t.Errorf("%d bytes are still missing", left)
	}
	if err := integrity.CheckPages(s.conn); err != nil {
		t.Error(err)
	}
}

// On a disk that is short of space, the write-ahead log is emptied even if the database has no free pages.
func TestCompactEmptiesLogOnShortDisk(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueueLarge(t, s, 10)
	if size := fileSize(t, s, "-wal"); size < 1<<20 {
		t.Fatalf("the log has only %d bytes", size)
	}
	s.freeSpace = func() (int64, error) { return sqlitedb.MinFreeBytes, nil }
	compactAll(t, s)
	if size := fileSize(t, s, "-wal"); size > 0 {
		t.Errorf("the log has %d bytes, want none", size)
	}
}
