package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/sqlitedb"
	"sync"
)

// openStoreWithOutput returns a store with one job whose output is in a file and has the given size in bytes.
func openStoreWithOutput(t *testing.T, outputBytesText string) *Store {
	t.Helper()
	dir := createDatabase(t, 1)
	execOnClosedDatabase(t, dir, `INSERT INTO attempts (seq, n, fence, worker, node, pid, started_at,
			ended_at, exit_code, signal, reason, error, counted, cpu_us, peak_rss, leftovers, dropped, output_ref,
			output_bytes)
		VALUES (1, 1, 1, '', '', 1, 1, 1, 0, 0, '', '', 1, 0, 0, 0, 0, '1-1', `+outputBytesText+`)`,
		`UPDATE jobs SET runs = 1`, `UPDATE meta SET output_bytes = `+outputBytesText)
	return openStore(t, dir)
}

func checkNoTempCopiesLeft(t *testing.T, s *Store) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(s.stateDir, tempCopyFilePrefix+"*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func ignoreProgress(int64, int64) error { return nil }

// A backup leaves the disk space that the queue needs. It does not start if the database and its output files
// do not fit. It stops if other programs fill the disk while it runs.
func TestBackupLeavesDiskSpaceForTheQueue(t *testing.T) {
	s := openStoreWithOutput(t, "100000000")
	read := 0
	outputs := func(string) (io.ReadCloser, error) {
		read++
		return io.NopCloser(strings.NewReader("x")), nil
	}
	s.freeDiskBytes = func() (int64, error) { return 50<<20 + 1, nil }
	_, err := s.Backup(t.Context(), outputs, ignoreProgress)
	if !errors.Is(err, queue.ErrNoSpace) || read != 0 {
		t.Errorf("with too little space: %v", err)
	}
	if units := regexp.MustCompile(
		`needs [0-9]+KiB on the disk of .*, but only 50MiB are free`); !units.MatchString(fmt.Sprint(err)) {
		t.Errorf("with too little space: %v; want %v", err, units)
	}
	free := int64(1 << 30)
	s.freeDiskBytes = func() (int64, error) { return free, nil }
	taken := func(string) (io.ReadCloser, error) {
		free = sqlitedb.MinFreeBytesForNewJobs
		return outputs("")
	}
	if _, err := s.Backup(t.Context(), taken, ignoreProgress); !errors.Is(err, queue.ErrNoSpace) {
		t.Errorf("with less and less space: %v", err)
	}
	checkNoTempCopiesLeft(t, s)
	free = 1 << 30
	made, err := s.Backup(t.Context(), outputs, ignoreProgress)
	if err != nil {
		t.Fatal(err)
	}
	made.Close()
}

// A backup stops when its context ends, for example because the client has disconnected. It leaves no files
// behind, and another backup can begin.
func TestBackupStopsWhenContextEnds(t *testing.T) {
	s := openStoreWithOutput(t, "1")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Backup(ctx, func(string) (io.ReadCloser, error) {
		cancel()
		return nil, os.ErrNotExist
	}, ignoreProgress)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	checkNoTempCopiesLeft(t, s)
	made, err := s.Backup(t.Context(), func(string) (io.ReadCloser, error) { return nil, os.ErrNotExist }, ignoreProgress)
	if err != nil {
		t.Fatal(err)
	}
	made.Close()
}

// VerifyData does not report an output file that is deleted while it runs.
func TestVerifyToleratesConcurrentOutputDeletion(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueueJobs(t, s, 3)
	dir := t.TempDir()
	for _, name := range []string{"7-1", "8-1"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := s.VerifyData(t.Context(), store.OutputDirs{Dirs: []string{dir}},
		func(int64, int64) error { return os.RemoveAll(filepath.Join(dir, "7-1")) })
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, f := range list {
		if f.CheckName == "outputs" {
			said = append(said, f.Message)
		}
	}
	if len(said) != 1 || !strings.Contains(said[0], "8-1 belongs to no attempt") {
		t.Errorf("it said %q", said)
	}
}

// The backup operation of SQLite always ends before the copy is closed, so that SQLite does not
// write to a closed file. This holds even if the client disconnects, the store closes or fails, or
// the write queue is full.
func TestSQLiteBackupEndsBeforeCopyCloses(t *testing.T) {
	for name, during := range map[string]func(s *Store, cancel func()) error{
		"gone client": func(_ *Store, cancel func()) error { cancel(); return nil },
		"closing":     func(s *Store, _ func()) error { return s.Close() },
		"failed": func(s *Store, _ func()) error {
			if err := os.Rename(filepath.Join(s.stateDir, sqlitedb.DatabaseFileName+"-wal"),
				filepath.Join(s.stateDir, "away")); err != nil {
				return err
			}
			if err := s.RunAndCommit(context.Background(), engine.UrgentClass,
				func(*engine.Tx) error { return nil }); !errors.Is(err,
				queue.ErrOutcomeUnknown) {
				return fmt.Errorf("it did not fail: %w", err)
			}
			return nil
		},
		"full queue": func(s *Store, _ func()) error {
			release := blockWriter(t, s)
			var waiters sync.WaitGroup
			refused := make(chan error, 1)
			for full := false; !full; {
				waiters.Go(func() {
					err := s.RunAndCommit(context.Background(), engine.NormalClass, func(*engine.Tx) error { return nil })
					select {
					case refused <- err:
					default: // another waiter was already refused
					}
				})
				select {
				case err := <-refused:
					if full = true; !errors.Is(err, queue.ErrUnavailable) {
						return fmt.Errorf("one more operation was accepted: %w", err)
					}
				default:
				}
			}
			// Release the writer in the background: the backup may have to wait for it.
			go func() {
				release()
				waiters.Wait()
			}()
			return errors.New("given up")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, t.TempDir())
			enqueueThousands(t, s, 5000, func(*queue.Job) {}) // the copy takes several steps
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			called := false
			_, err := s.Backup(ctx, func(string) (io.ReadCloser, error) { return nil, os.ErrNotExist },
				func(int64, int64) error {
					if called {
						return nil
					}
					called = true
					return during(s, cancel)
				})
			if err == nil || strings.Contains(err.Error(), "it did not fail") || strings.Contains(err.Error(), "was accepted") {
				t.Errorf("got %v, want an error", err)
			}
			s.RunAsWriter(func() {
				if s.backupHandle != 0 {
					t.Error("the backup was not ended")
				}
			})
			checkNoTempCopiesLeft(t, s)
		})
	}
}
