package sqlite

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// A local directory that is opened through a network share is rejected.
func TestSharedFolderIsRefused(t *testing.T) {
	dir := t.TempDir()
	share := `\\localhost\` + strings.Replace(dir, ":", "$", 1)
	if _, err := os.Stat(share); err != nil {
		skip.MissingRequirement(t, "windows", "needs a real Windows and an administrator; the workflow windows runs it, "+
			"and TestClassifyVolumeFileSystem tests which file systems are rejected")
	}
	if s, err := Open(t.Context(), Options{Dir: share, RankOrder: defaultJobOrder}); !errors.Is(err, queue.ErrInvalid) {
		t.Errorf("got %v, want %v", err, queue.ErrInvalid)
		if err == nil {
			s.Close()
		}
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("made there: %v", left)
	}
}

// On Windows, the files of an open store cannot be removed, renamed or replaced. So the
// store does not watch them.
func TestOpenStoreFilesCannotBeReplaced(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	enqueueJobs(t, s, 1)
	for _, name := range []string{sqlitedb.DatabaseFileName, sqlitedb.DatabaseFileName + "-wal",
		sqlitedb.DatabaseFileName + "-shm"} {
		path := filepath.Join(dir, name)
		other := filepath.Join(t.TempDir(), "other")
		if err := os.WriteFile(other, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{"removed": os.Remove(path), "renamed": os.Rename(path, path+"2"),
			"replaced": os.Rename(other, path)} {
			if err == nil {
				t.Errorf("%s was %s", name, what)
			}
		}
	}
	enqueueJobs(t, s, 1)
	if _, err := s.checkFilesNotReplaced(); err != nil || s.Err() != nil {
		t.Errorf("the store: %v, %v", err, s.Err())
	}
}

// The directory of an open store cannot be renamed. Wine allows it, but then the next commit fails, and
// nothing more is acknowledged.
func TestOpenStoreDirectoryCannotBeRenamed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "q")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, dir)
	renamed := os.Rename(dir, dir+"2") == nil
	_, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft()}})
	if renamed != errors.Is(err, queue.ErrOutcomeUnknown) || !renamed && err != nil {
		t.Errorf("the directory was renamed: %t; then: %v", renamed, err)
	}
	if wine := windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil; renamed != wine {
		t.Errorf("the directory was renamed: %t", renamed)
	}
}

// A restore fails while another program has the old database open, because it cannot be moved aside. The
// database is unchanged. After the program has ended, a restore succeeds.
func TestRestoreRefusesDatabaseInUse(t *testing.T) {
	dir, file := createDatabase(t, 2), createBackup(t, 3, "true")
	said, stop := startSQLProgram(t, filepath.Join(dir, sqlitedb.DatabaseFileName), `SELECT count(*) FROM jobs`)
	err := restoreBackup(dir, file)
	stop()
	if said != "<nil>" || !errors.Is(err, windows.ERROR_SHARING_VIOLATION) {
		t.Fatalf("the other program got %s; restoring got %v", said, err)
	}
	s := openStore(t, dir)
	if n := s.Counts().JobsEverEnqueued; n != 2 {
		t.Errorf("%d jobs, want the 2 that were there", n)
	}
	if err := errors.Join(s.Close(), os.Remove(filepath.Join(dir, "aside")), restoreBackup(dir, file)); err != nil {
		t.Fatal(err)
	}
	if n := openStore(t, dir).Counts().JobsByState[queue.Pending]; n != 3 {
		t.Errorf("%d jobs, want the 3 of the backup", n)
	}
}
