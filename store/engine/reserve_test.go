package engine_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// The last part of the disk reserve is released only for operations that remove data.
func TestDiskReserveKeepsSpaceForRemovals(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	const removalBytes = 2 << 20 // the part of the reserve that is only for removals
	enqueue(t, s, 1)
	full := &sqlitedb.Error{Code: sqlite3.SQLITE_FULL}
	left := func() int64 {
		info, err := os.Stat(filepath.Join(dir, sqlitedb.ReserveFileName))
		if err != nil {
			return 0
		}
		return info.Size()
	}
	for range 3 {
		err := s.RunAndCommit(t.Context(), engine.UrgentClass, func(*engine.Tx) error { return full })
		if !errors.Is(err, queue.ErrNoSpace) || left() != removalBytes {
			t.Fatalf("an operation that records a job: %v, and %d bytes of the reserve remain; want %v and %d", err, left(),
				queue.ErrNoSpace, removalBytes)
		}
	}
	tries := 0
	err := s.DoRemoval(t.Context(), engine.NormalClass, func(*engine.Tx) error {
		if tries++; left() > 0 {
			return full
		}
		return nil
	})
	if err != nil || tries != 2 {
		t.Errorf("an operation that removes: %v after %d tries, want no error after 2", err, tries)
	}
	err = s.DoRemoval(t.Context(), engine.NormalClass, func(*engine.Tx) error { return full })
	if !errors.Is(err, queue.ErrNoSpace) {
		t.Errorf("without a remaining reserve: %v, want %v", err, queue.ErrNoSpace)
	}
	if s.Err() != nil {
		t.Errorf("the store has failed: %v", s.Err())
	}
}
