package sqlite

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// readFiles returns the contents of all files in a directory, by file name.
func readFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		found[e.Name()] = string(raw)
	}
	return found
}

// A read-only store shows the jobs that the last service has left, even after a crash, and changes
// no file. A service can start while it is open. After the service has written something, the
// read-only store refuses reads.
func TestReadOnlyStoreRefusesReadsAfterWrites(t *testing.T) {
	for name, dies := range map[string]bool{"after a stop": false, "after a crash": true} {
		dir := createDatabase(t, 3)
		path := filepath.Join(dir, sqlitedb.DatabaseFileName)
		want := ""
		if dies {
			said, die := startSQLProgram(t, path,
				`UPDATE jobs SET error = 'committed';BEGIN IMMEDIATE;UPDATE jobs SET error = 'not'`)
			die()
			if want = "committed"; said != "<nil>" {
				t.Fatal(said)
			}
		}
		before := readFiles(t, dir)
		s, err := OpenReadOnly(Options{Dir: dir})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		page, err := s.ListJobs(t.Context(), store.JobFilter{Limit: 5})
		if err != nil || len(page.Jobs) != 3 || page.Jobs[0].Error != want {
			t.Errorf("%s: %+v, %v", name, page.Jobs, err)
		}
		if n := s.Counts().JobsByState[queue.Pending]; n != 3 {
			t.Errorf("%s: %d jobs wait, want 3", name, n)
		}
		if n := s.StoredBytesOfUser(page.Jobs[0].UID); n < 3*store.QuotaBytesPerJob {
			t.Errorf("%s: the jobs hold %d bytes, want at least %d", name, n, 3*store.QuotaBytesPerJob)
		}
		if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{}); !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("%s: a change: %v", name, err)
		}
		if !maps.Equal(readFiles(t, dir), before) {
			t.Errorf("%s: a file was changed", name)
		}
		said, die := startSQLProgram(t, path, `UPDATE jobs SET error = 'concurrent'`)
		if said != "<nil>" {
			t.Errorf("%s: another writer: %s", name, said)
		}
		if _, err := s.ListJobs(t.Context(), store.JobFilter{Limit: 5}); !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("%s: reading while another process writes: %v", name, err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
		die()
		after := openStore(t, dir)
		if page, err := after.ListJobs(t.Context(), store.JobFilter{Limit: 5}); err != nil || len(page.Jobs) != 3 ||
			page.Jobs[0].Error != "concurrent" {
			t.Errorf("%s: afterwards: %+v, %v", name, page.Jobs, err)
		}
	}
}

// A database that cannot be read without changing a file is rejected, and the error says why.
func TestReadOnlyOpenExplainsItsRefusal(t *testing.T) {
	empty := t.TempDir()
	if _, err := OpenReadOnly(Options{Dir: empty}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no database: %v", err)
	}
	if err := os.WriteFile(filepath.Join(empty, sqlitedb.DatabaseFileName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenReadOnly(Options{Dir: empty}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty file: %v", err)
	}
	dir := createDatabase(t, 1)
	_, die := startSQLProgram(t, filepath.Join(dir, sqlitedb.DatabaseFileName), `UPDATE jobs SET error = 'committed'`)
	die()
	if err := os.Remove(filepath.Join(dir, sqlitedb.DatabaseFileName+"-shm")); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenReadOnly(Options{Dir: dir}); !errors.Is(err, queue.ErrWrongState) {
		t.Errorf("a log without its index: %v", err)
	}
}
