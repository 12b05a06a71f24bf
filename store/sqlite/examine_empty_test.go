package sqlite

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/integrity"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// For a database without tables, ExamineStoppedDatabase reports exactly one finding: a failure if the directory once
// had a queue. ExamineStoppedDatabase does not change an empty file.
func TestExamineReportsAnEmptyDatabaseOnce(t *testing.T) {
	emptyFile := func(path string) error { return os.WriteFile(path, nil, 0o600) }
	noTables := func(path string) error {
		if err := emptyFile(path); err != nil {
			return err
		}
		c, err := sqlitedb.OpenWriter(path)
		if err != nil {
			return err
		}
		return errors.Join(c.Exec(`CREATE TABLE x (y)`), c.Exec(`DROP TABLE x`), c.Close())
	}
	for what, create := range map[string]func(path string) error{"an empty file": emptyFile, "no tables": noTables} {
		for level, hasMark := range map[store.FindingLevel]bool{store.LevelWarning: false, store.LevelFailure: true} {
			dir := t.TempDir()
			path := filepath.Join(dir, sqlitedb.DatabaseFileName)
			if err := create(path); err != nil {
				t.Fatal(err)
			}
			if hasMark {
				if err := os.WriteFile(filepath.Join(dir, sqlitedb.HighWaterFileName), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			before, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, thorough := range []bool{false, true} {
				var found []store.Finding
				for _, f := range integrity.ExamineStoppedDatabase(dir, store.OutputDirs{}, thorough) {
					if f.CheckName == "database" || f.CheckName == "batches" || f.CheckName == "clock" || f.CheckName == "integrity" {
						found = append(found, f)
					}
				}
				if len(found) != 1 || found[0].Level != level {
					t.Errorf("%s, mark %v, thorough %v: got %+v, want one finding at level %s", what, hasMark, thorough, found, level)
				}
			}
			if after, err := os.Stat(path); err != nil || after.Size() != before.Size() {
				t.Errorf("%s: the file has %d bytes (%v), want %d", what, after.Size(), err, before.Size())
			}
		}
	}
}
