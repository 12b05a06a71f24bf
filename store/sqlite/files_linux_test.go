package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/integrity"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// A database that is a symbolic link, or that other users can read, is rejected.
func TestOpenRefusesLinkedOrExposedDatabase(t *testing.T) {
	for says, harm := range map[string]func(path string) error{
		"regular":   func(p string) error { return errors.Join(os.Rename(p, p+"2"), os.Symlink(p+"2", p)) },
		"chmod 600": func(p string) error { return os.Chmod(p, 0o644) },
	} {
		dir := createDatabase(t, 100)
		if err := harm(filepath.Join(dir, sqlitedb.DatabaseFileName)); err != nil {
			t.Fatal(err)
		}
		expectOpenRefused(t, dir, says)
	}
}

// If the directory or a database file is not writable, opening fails, and ExamineStateDir reports the file. The
// error names the next step. Root is tested too, after it has given up its privileges.
func TestUnwritableFilesAreRefused(t *testing.T) {
	for name, path := range map[string]func(dir string) string{
		"directory": func(dir string) string { return dir },
		"database":  func(dir string) string { return filepath.Join(dir, sqlitedb.DatabaseFileName) },
	} {
		t.Run(name, func(t *testing.T) { checkReadOnlyRefused(t, createDatabase(t, 1), path) })
	}
}

// checkReadOnlyRefused makes a path read-only and checks that opening the database then fails and that
// ExamineStateDir reports the path. readOnlyPath returns the path, given the database's directory.
func checkReadOnlyRefused(t *testing.T, dir string, readOnlyPath func(dir string) string) {
	if os.Geteuid() == 0 {
		runtime.LockOSThread() // never unlocked: the thread ends with the test
		for _, p := range []string{
			dir, filepath.Join(dir, sqlitedb.DatabaseFileName), filepath.Join(dir, sqlitedb.HighWaterFileName),
		} {
			if err := os.Chown(p, 65534, 65534); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		const unchangedUID = ^uintptr(0)
		setUID := func(uid uintptr) { // change only this thread; syscall.Setuid would change all threads
			if _, _, failed := unix.RawSyscall(unix.SYS_SETRESUID, unchangedUID, uid, unchangedUID); failed != 0 {
				t.Fatal(failed)
			}
		}
		setUID(65534)
		defer setUID(0)
	}
	if err := os.Chmod(readOnlyPath(dir), 0o500); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(readOnlyPath(dir), 0o700)
	expectOpenRefused(t, dir, "cannot be written")
	want := readOnlyPath(dir) + " cannot be written: permission denied; give the service's account write access to it"
	reported := func(f store.Finding) bool { return f.Level == store.LevelFailure && f.Message == want }
	if got := integrity.ExamineStateDir(dir); !slices.ContainsFunc(got, reported) {
		t.Errorf("doctor reports %+v, want %q among them", got, want)
	}
}

// replaceFile replaces a file with a copy of it.
func replaceFile(p string) error {
	raw, err := os.ReadFile(p)
	return errors.Join(err, os.WriteFile(p+"2", raw, 0o600), os.Rename(p+"2", p))
}

// If the WAL or the database is deleted or replaced while the service runs, the store fails for good with an
// error that says so. It acknowledges no further request.
func TestReplacedFilesStopTheStore(t *testing.T) {
	for what, harm := range map[string]func(path string) error{
		"wal deleted":       func(p string) error { return os.Remove(p + "-wal") },
		"database deleted":  os.Remove,
		"database replaced": replaceFile,
		"wal replaced":      func(p string) error { return replaceFile(p + "-wal") },
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			s := openStore(t, dir)
			enqueueJobs(t, s, 1)
			if err := harm(filepath.Join(dir, sqlitedb.DatabaseFileName)); err != nil {
				t.Fatal(err)
			}
			_, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft()}})
			if !errors.Is(err, queue.ErrOutcomeUnknown) {
				t.Errorf("got %v, want %v", err, queue.ErrOutcomeUnknown)
			}
			<-s.StoreFailed()
			if !errors.Is(s.Err(), queue.ErrOutcomeUnknown) {
				t.Errorf("got %v as the reason, want %v", s.Err(), queue.ErrOutcomeUnknown)
			}
			if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft()}}); err == nil {
				t.Error("a failed store took a job")
			}
		})
	}
}

// Closing another descriptor of the database does not release SQLite's locks on it, because they belong to the
// open file description, not to the process.
func TestClosingDescriptorKeepsSQLiteLocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), sqlitedb.DatabaseFileName)
	s := openStore(t, filepath.Dir(path))
	inTransaction(t, s, func() error {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		inode := fmt.Sprintf(":%d ", info.Sys().(*syscall.Stat_t).Ino)
		locks, err := os.ReadFile("/proc/locks")
		if err != nil {
			return err
		}
		held := 0
		for line := range strings.Lines(string(locks)) {
			if strings.Contains(line, inode) {
				held++
				if !strings.Contains(line, "OFDLCK") {
					t.Errorf("a lock of the process: %s", line)
				}
			}
		}
		if held == 0 {
			t.Error("the store holds no lock")
		}
		return nil
	})
}

// A store reports that it is a copy or was restored, until StoreRunnerDirs is called. A store that is opened
// again in its original directory does not.
func TestCopiedStoreReportsThatItIsACopy(t *testing.T) {
	moved := func(s *Store) bool {
		left, err := s.PreviousSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return left.IsDatabaseCopy
	}
	dir := t.TempDir()
	s := openStore(t, dir)
	for range 2 {
		if moved(s) {
			t.Error("the original is a copy")
		}
		if err := s.StoreRunnerDirs(t.Context(), []string{"/d/runner"}); err != nil {
			t.Fatal(err)
		}
		s.Close()
		s = openStore(t, dir)
	}
	file := backupToFile(t, s)
	s.Close()
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(copied, sqlitedb.DatabaseFileName), 0o600); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, copied)
	if !moved(s) {
		t.Error("a copy is the original")
	}
	if err := s.StoreRunnerDirs(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = openStore(t, copied)
	defer s.Close()
	if moved(s) {
		t.Error("a copy that has recorded its runners is still reported as a copy")
	}
	if err := restoreBackup(dir, file); err != nil {
		t.Fatal(err)
	}
	restored := openStore(t, dir)
	defer restored.Close()
	if !moved(restored) {
		t.Error("a restored database is not reported as a copy")
	}
}

// If SQLite cannot open the temporary file of a backup, the file is deleted.
func TestBackupThatCannotBeOpenedIsDeleted(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	s.stateDir = filepath.Join(dir, strings.Repeat(strings.Repeat("x", 200)+"/", 3)) // SQLite allows 512 bytes
	defer func() { s.stateDir = dir }()
	if err := os.MkdirAll(s.stateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Backup(t.Context(), nil, ignoreProgress); err == nil {
		t.Error("SQLite opened a file with too long a path")
	}
	checkNoTempCopiesLeft(t, s)
}

// If another program truncates the WAL or the database while jobs are enqueued and listed, the store
// fails for good. At the next start, the database is rejected, or it opens with all jobs that a
// checkpoint had already moved into it.
func TestTruncatedFilesStopTheStore(t *testing.T) {
	for what, c := range map[string]struct {
		suffix string
		keep   func(size int64) int64
	}{
		"wal, by half":         {"-wal", func(size int64) int64 { return size / 2 }},
		"wal, all of it":       {"-wal", func(int64) int64 { return 0 }},
		"wal, the last change": {"-wal", func(size int64) int64 { return size - sqlitedb.PageSize }},
		"database, by half":    {"", func(size int64) int64 { return size / 2 / sqlitedb.PageSize * sqlitedb.PageSize }},
		"database, a page":     {"", func(size int64) int64 { return size - sqlitedb.PageSize }},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			s := openStore(t, dir)
			enqueueThousands(t, s, 5000, func(*queue.Job) {})
			if err := s.writerConn.Exec(`PRAGMA wal_checkpoint(TRUNCATE)`); err != nil {
				t.Fatal(err)
			}
			enqueueThousands(t, s, 1000, func(*queue.Job) {})
			path := filepath.Join(dir, sqlitedb.DatabaseFileName+c.suffix)
			var load sync.WaitGroup
			for range 4 {
				load.Go(func() {
					for s.Err() == nil {
						s.Enqueue(context.Background(), store.EnqueueRequest{Drafts: []queue.Job{newDraft()}})
					}
				})
			}
			load.Go(func() {
				for s.Err() == nil {
					s.ListJobs(context.Background(), store.JobFilter{Limit: 100})
				}
			})
			var err error
			s.RunAsWriter(func() { // truncate between two commits: this is the most common case
				info, failed := os.Stat(path)
				if err = failed; err == nil {
					err = os.Truncate(path, c.keep(info.Size()))
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			awaitStoreFailure(t, s)
			load.Wait()
			if !errors.Is(s.Err(), queue.ErrOutcomeUnknown) {
				t.Errorf("the store failed with %v", s.Err())
			}
			if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft()}}); err == nil {
				t.Error("a failed store took a job")
			}
			s.Close()
			s, err = Open(t.Context(), Options{Dir: dir, RankOrder: defaultJobOrder})
			if err != nil && c.suffix == "" && strings.Contains(err.Error(), "damaged") {
				return // the database is rejected: the lost pages are not in the WAL either
			}
			if c.suffix != "" {
				if err == nil || !strings.Contains(err.Error(), "acknowledged changes") {
					t.Fatalf("opening a file that lost pages: %v", err)
				}
				// Open the database again with the jobs that are left.
				if err = os.Remove(filepath.Join(dir, sqlitedb.HighWaterFileName)); err == nil {
					s, err = Open(t.Context(), Options{Dir: dir, RankOrder: defaultJobOrder})
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if n := s.Counts().JobsByState[queue.Pending]; n < 5000 {
				t.Errorf("%d jobs are left of 5000 that were in the database", n)
			}
			expectNoFaults(t, s, "opened again")
		})
	}
}

// ExamineStoppedDatabase follows a symbolic link to the directory and checks its target.
func TestExamineFollowsDirectoryLink(t *testing.T) {
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	openStore(t, dir).Close()
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, f := range integrity.ExamineStoppedDatabase(link, store.OutputDirs{}, false) {
		if f.CheckName == "permissions" && f.Level != store.LevelOK {
			t.Errorf("%+v", f)
		}
	}
}
