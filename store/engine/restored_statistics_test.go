package engine_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/integrity"
	"github.com/queuectl/queuectl/store/sqlite"
)

// After a restore, the statistics are those of the time of the backup. Upkeep continues from there to sum them up to
// hours and days.
func TestRestoredStatisticsContinue(t *testing.T) {
	now := queue.UnixMillisOf(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	s := openWithClock(t, t.TempDir(), &now)
	engine.CompleteOneJob(t, engine.NewStoreForEngine(s.Engine), "f")
	now += queue.UnixMillis((26 * time.Hour).Milliseconds())
	engine.CompleteOneJob(t, engine.NewStoreForEngine(s.Engine), "f")
	engine.ApplyAllDueChanges(t, engine.NewStoreForEngine(s.Engine))
	file, dir := backupToFile(t, s), t.TempDir()
	engine.CompleteOneJob(t, engine.NewStoreForEngine(s.Engine), "f") // the backup does not contain this job
	if err := restoreBackup(dir, file); err != nil {
		t.Fatal(err)
	}
	s = openWithClock(t, dir, &now)
	engine.CompleteOneJob(t, engine.NewStoreForEngine(s.Engine), "f")
	now += queue.UnixMillis((20 * time.Hour).Milliseconds())
	engine.ApplyAllDueChanges(t, engine.NewStoreForEngine(s.Engine))
	for g := store.PerMinute; g <= store.PerDay; g++ {
		if f := engine.SumStatistics(t, engine.NewStoreForEngine(s.Engine), g); f.Started != 3 || f.Completed != 3 {
			t.Errorf("by %v %d began and %d completed, want 3", g, f.Started, f.Completed)
		}
	}
	kin := engine.NewDraft(func(j *queue.Job) { j.Queue = "f" })
	if s.TypicalRuntime(kin.CommandFingerprint()) != 5*time.Second {
		t.Errorf("the typical run time is %v, want 5s", s.TypicalRuntime(kin.CommandFingerprint()))
	}
}

// backupToFile writes a backup of the store to a file.
func backupToFile(t *testing.T, s *sqlite.Store) (file string) {
	t.Helper()
	none := func(string) (io.ReadCloser, error) { return nil, os.ErrNotExist }
	made, err := s.Backup(t.Context(), none, func(int64, int64) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	raw, err := io.ReadAll(made)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// restoreBackup restores a backup without outputs into a state directory.
func restoreBackup(dir, file string) error {
	_, replace, err := integrity.PrepareRestore(dir, file, func(string) (io.WriteCloser, error) {
		return nil,
			errors.New("no outputs here")
	}, func(int64, int64) {})
	if err != nil {
		return err
	}
	aside := filepath.Join(dir, "aside")
	if err := os.Mkdir(aside, 0o700); err != nil {
		return err
	}
	return replace(aside, func() error { return nil })
}

// openWithClock opens a store whose clock returns *now.
func openWithClock(t *testing.T, dir string, now *queue.UnixMillis) *sqlite.Store {
	t.Helper()
	s := openStore(t, dir)
	s.SetClock(func() queue.UnixMillis { return *now })
	return s
}
