package sqlite

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/integrity"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// readDatabaseFiles returns the contents of the database files in a directory. The files are read while the
// store is open, so they look as if the process was killed.
func readDatabaseFiles(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for _, name := range []string{sqlitedb.DatabaseName, sqlitedb.DatabaseName + "-wal", sqlitedb.HighWaterName} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = raw
	}
	return files
}

// enqueueSeparately enqueues n jobs, each in its own request.
func enqueueSeparately(t *testing.T, s *Store, n int) {
	t.Helper()
	for range n {
		if _, err := s.Enqueue(t.Context(), store.Request{Drafts: []queue.Job{draft()}}); err != nil {
			t.Fatal(err)
		}
	}
}

// A database that has lost acknowledged changes is rejected by the next start and by ExamineStopped,
// and is not modified. SQLite itself does not notice the loss, because it ignores a write-ahead log
// from the first damaged part on.
func TestLostCommitsAreNoticed(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	enqueueSeparately(t, s, 10)
	older := readDatabaseFiles(t, dir)
	enqueueSeparately(t, s, 10)
	whole := readDatabaseFiles(t, dir)
	for _, c := range []struct {
		name string
		harm func(files map[string][]byte)
		jobs int64 // expected number of jobs; -1 means that the database is rejected
	}{
		{"no damage", func(map[string][]byte) {}, 20},
		{"a flipped bit", func(f map[string][]byte) {
			f[sqlitedb.DatabaseName+"-wal"][len(f[sqlitedb.DatabaseName+"-wal"])/2] ^= 1
		}, -1},
		{"a cut log", func(f map[string][]byte) {
			f[sqlitedb.DatabaseName+"-wal"] = f[sqlitedb.DatabaseName+"-wal"][:len(f[sqlitedb.DatabaseName+"-wal"])/2]
		}, -1},
		{"no log", func(f map[string][]byte) { delete(f, sqlitedb.DatabaseName+"-wal") }, -1},
		{"an older copy", func(f map[string][]byte) {
			maps.Copy(f, map[string][]byte{sqlitedb.DatabaseName: older[sqlitedb.DatabaseName], sqlitedb.DatabaseName + "-wal": older[sqlitedb.DatabaseName+"-wal"]})
		}, -1},
		{"an older mark", func(f map[string][]byte) { f[sqlitedb.HighWaterName] = older[sqlitedb.HighWaterName] }, 20},
		{"a damaged mark", func(f map[string][]byte) { f[sqlitedb.HighWaterName][1] ^= 1; f[sqlitedb.HighWaterName][64+1] ^= 1 },
			20},
		{"half a mark", func(f map[string][]byte) { f[sqlitedb.HighWaterName] = f[sqlitedb.HighWaterName][:10] }, 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string][]byte{}
			for name, raw := range whole {
				files[name] = bytes.Clone(raw)
			}
			c.harm(files)
			dir := t.TempDir()
			for name, raw := range files {
				if err := os.WriteFile(filepath.Join(dir, name), raw, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s, err := Open(t.Context(), Options{Dir: dir, Order: defaultOrder})
			if c.jobs >= 0 {
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				if n := s.Counts().States[queue.Pending]; n != c.jobs {
					t.Errorf("%d jobs, want %d", n, c.jobs)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), "acknowledged changes") {
				if err == nil {
					s.Close()
				}
				t.Fatalf("it opens: %v", err)
			}
			said := ""
			for _, f := range integrity.ExamineStopped(dir, store.OutputDirs{}, false) {
				if f.Level == store.LevelFailure && f.Check == "database" {
					said += f.Message
				}
			}
			if !strings.Contains(said, "acknowledged changes") {
				t.Errorf("doctor says %q", said)
			}
			if err := os.Remove(filepath.Join(dir, sqlitedb.HighWaterName)); err != nil {
				t.Fatal(err)
			}
			if s, err = Open(t.Context(), Options{Dir: dir, Order: defaultOrder}); err != nil {
				t.Fatalf("opening the rest of the files: %v", err)
			}
			s.Close()
		})
	}
}

// After a restore, numbers of jobs that were assigned before are not assigned again, even if the old database
// cannot be read. The high-water file next to the database contains the last numbers.
func TestRestoreKeepsTheNumbersOfTheMark(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	enqueueSeparately(t, s, 3)
	file := backup(t, s)
	enqueueSeparately(t, s, 5)
	s.Close()
	if err := os.Remove(filepath.Join(dir, sqlitedb.DatabaseName)); err != nil { // a killed restore leaves this state
		t.Fatal(err)
	}
	if err := restore(dir, file); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir)
	receipt, err := s.Enqueue(t.Context(), store.Request{Drafts: []queue.Job{draft()}})
	if err != nil || receipt.Seqs[0] != 9 {
		t.Errorf("the next job is %v, want 9: %v", receipt.Seqs, err)
	}
}
