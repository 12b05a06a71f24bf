package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/integrity"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// createBackup returns a backup of a queue with jobCount jobs that have the given command.
func createBackup(t *testing.T, jobCount int, jobCommand string) (backupPath string) {
	t.Helper()
	s := openStore(t, t.TempDir())
	defer s.Close()
	drafts := make([]queue.Job, jobCount)
	for i := range drafts {
		drafts[i] = newDraft(func(j *queue.Job) { j.Command = jobCommand })
	}
	if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts}); err != nil {
		t.Fatal(err)
	}
	return backupToFile(t, s)
}

// backupToFile writes a backup of a store to a file, and returns the path of the file.
func backupToFile(t *testing.T, s *Store) (backupPath string) {
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
	backupPath = filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(backupPath, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return backupPath
}

// restoreBackup restores a backup that contains no output files into a directory.
func restoreBackup(targetDir, backupPath string) error {
	_, replace, err := integrity.PrepareRestore(targetDir, backupPath, func(string) (io.WriteCloser, error) {
		return nil,
			errors.New("no outputs here")
	}, func(int64, int64) {})
	if err != nil {
		return err
	}
	aside := filepath.Join(targetDir, "aside")
	if err := os.Mkdir(aside, 0o700); err != nil {
		return err
	}
	return replace(aside, func() error { return nil })
}

// Files that a killed restore has left do not affect the next restore. SQLite would otherwise apply an old
// journal to the new file.
func TestRestoreIgnoresFilesOfKilledRestore(t *testing.T) {
	dir := t.TempDir()
	killed := filepath.Join(t.TempDir(), integrity.PreparedDatabaseFileName)
	if err := integrity.CopyFile(killed, createBackup(t, 300, "old"), func(int64, int64) {}); err != nil {
		t.Fatal(err)
	}
	c, err := sqlitedb.Open(killed, `journal_mode = delete`, `cache_size = 2`)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{`BEGIN`, `UPDATE jobs SET error = 'changed'`} {
		if err := c.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	for _, end := range []string{"", "-journal"} {
		if err := integrity.CopyFile(filepath.Join(dir, integrity.PreparedDatabaseFileName+end), killed+end,
			func(int64, int64) {}); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
	if err := restoreBackup(dir, createBackup(t, 300, "new")); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, dir)
	defer s.Close()
	page, err := s.ListJobs(t.Context(), store.JobFilter{Limit: 500})
	if err != nil || len(page.Jobs) != 300 {
		t.Fatalf("%d jobs, %v", len(page.Jobs), err)
	}
	for i := range page.Jobs {
		if page.Jobs[i].Command != "new" {
			t.Fatalf("job %s comes from another backup: %q", page.Jobs[i].ID, page.Jobs[i].Command)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, integrity.PreparedDatabaseFileName+"*")); len(left) > 0 {
		t.Errorf("remaining files: %v", left)
	}
}

// A database that passes SQLite's own checks but lacks a table or column of a queue is rejected.
func TestRestoreRefusesIncompleteSchema(t *testing.T) {
	for _, change := range []string{
		`DROP TABLE keys`,
		`CREATE TRIGGER t AFTER UPDATE ON meta BEGIN DELETE FROM jobs; END`,
		`CREATE VIEW v AS SELECT * FROM jobs`,
		`ALTER TABLE events RENAME COLUMN kind TO sort`,
	} {
		file := createBackup(t, 3, "true")
		c, err := sqlitedb.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Exec(change); err != nil {
			t.Fatal(err)
		}
		c.Close()
		dir := t.TempDir()
		if err := restoreBackup(dir, file); !errors.Is(err, queue.ErrInvalid) ||
			!strings.Contains(fmt.Sprint(err), "not a valid backup") {
			t.Errorf("%s: %v", change, err)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%s: remaining files %v", change, left)
		}
	}
}

// A backup with a newer schema can be restored if it says that this version may use it.
// Examine then reports no faults.
func TestRestoreAcceptsPermittedNewerSchema(t *testing.T) {
	file := createBackup(t, 3, "true")
	c, err := sqlitedb.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{`ALTER TABLE jobs ADD COLUMN newer TEXT`, `CREATE TABLE newest (n INTEGER)`,
		fmt.Sprintf(`PRAGMA user_version = %d`, len(database.SchemaMigrations)+1)} {
		if err := c.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
	dir := t.TempDir()
	if err := restoreBackup(dir, file); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, dir)
	defer s.Close()
	for _, f := range s.Examine(t.Context()) {
		if f.CheckName == "database" && f.Level != store.LevelOK {
			t.Errorf("%+v", f)
		}
	}
}
