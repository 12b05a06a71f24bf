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

// readDatabaseFiles returns the contents of the database files in a directory. It reads the files while the store is
// open, so their contents are like those that a killed process leaves.
func readDatabaseFiles(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for _, name := range []string{sqlitedb.DatabaseFileName, sqlitedb.DatabaseFileName + "-wal",
		sqlitedb.HighWaterFileName} {
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
		if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft()}}); err != nil {
			t.Fatal(err)
		}
	}
}

// A database that has lost acknowledged changes is rejected by the next start and by ExamineStoppedDatabase,
// and is not modified. SQLite itself does not notice the loss, because it ignores a write-ahead log
// from the first damaged part on.
func TestOpenRefusesLostCommits(t *testing.T) {
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
			f[sqlitedb.DatabaseFileName+"-wal"][len(f[sqlitedb.DatabaseFileName+"-wal"])/2] ^= 1
		}, -1},
		{"a cut log", func(f map[string][]byte) {
			f[sqlitedb.DatabaseFileName+"-wal"] = f[sqlitedb.DatabaseFileName+
				"-wal"][:len(f[sqlitedb.DatabaseFileName+"-wal"])/2]
		}, -1},
		{"no log", func(f map[string][]byte) { delete(f, sqlitedb.DatabaseFileName+"-wal") }, -1},
		{"an older copy", func(f map[string][]byte) {
			maps.Copy(f, map[string][]byte{sqlitedb.DatabaseFileName: older[sqlitedb.DatabaseFileName],
				sqlitedb.DatabaseFileName + "-wal": older[sqlitedb.DatabaseFileName+"-wal"]})
		}, -1},
		{"an older mark", func(f map[string][]byte) { f[sqlitedb.HighWaterFileName] = older[sqlitedb.HighWaterFileName] },
			20},
		{"a damaged mark", func(f map[string][]byte) {
			f[sqlitedb.HighWaterFileName][1] ^= 1
			f[sqlitedb.HighWaterFileName][64+1] ^= 1
		}, 20},
		{"half a mark", func(f map[string][]byte) { f[sqlitedb.HighWaterFileName] = f[sqlitedb.HighWaterFileName][:10] }, 20},
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
			s, err := Open(t.Context(), Options{Dir: dir, RankOrder: defaultJobOrder})
			if c.jobs >= 0 {
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				if n := s.Counts().JobsByState[queue.Pending]; n != c.jobs {
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
			for _, f := range integrity.ExamineStoppedDatabase(dir, store.OutputDirs{}, false) {
				if f.Level == store.LevelFailure && f.CheckName == "database" {
					said += f.Message
				}
			}
			if !strings.Contains(said, "acknowledged changes") {
				t.Errorf("doctor says %q", said)
			}
			if err := os.Remove(filepath.Join(dir, sqlitedb.HighWaterFileName)); err != nil {
				t.Fatal(err)
			}
			if s, err = Open(t.Context(), Options{Dir: dir, RankOrder: defaultJobOrder}); err != nil {
				t.Fatalf("opening the rest of the files: %v", err)
			}
			s.Close()
		})
	}
}

// After a restore, numbers of jobs that were assigned before are not assigned again, even if the old database
// cannot be read. The high-water file next to the database contains the last numbers.
func TestRestoreReusesNoJobNumbers(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	enqueueSeparately(t, s, 3)
	file := backupToFile(t, s)
	enqueueSeparately(t, s, 5)
	s.Close()
	if err := os.Remove(filepath.Join(dir, sqlitedb.DatabaseFileName)); err != nil { // a killed restore leaves this state
		t.Fatal(err)
	}
	if err := restoreBackup(dir, file); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir)
	receipt, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft()}})
	if err != nil || receipt.Seqs[0] != 9 {
		t.Errorf("the next job is %v, want 9: %v", receipt.Seqs, err)
	}
}
