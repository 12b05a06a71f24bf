package engine_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/integrity"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// If the service crashes at any statement of a migration, the database has either the old or the new schema. The next
// start continues the migration. Its result is the schema of a new database.
func TestMigrationCrashesLeaveOldOrNew(t *testing.T) {
	skip.IfShort(t, "takes long; make test-long runs it")
	for v := range database.SchemaMigrations {
		for n := range len(database.SchemaMigrations[v]) + 1 {
			dir := t.TempDir()
			path := filepath.Join(dir, sqlitedb.DatabaseFileName)
			c, err := sqlitedb.OpenWriter(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := sqlitedb.Migrate(c, database.SchemaMigrations[:v]); err != nil {
				t.Fatal(err)
			}
			if err := sqlitedb.MigrateToNextVersion(c, v, append(slices.Clone(database.SchemaMigrations[v][:n]),
				`SELECT * FROM broken`)); err == nil {
				t.Fatal("a broken statement was carried out")
			}
			// Stop inside the transaction, which leaves the same files as kill -9.
			for _, q := range append([]string{`BEGIN IMMEDIATE`}, database.SchemaMigrations[v][:n]...) {
				if err := c.Exec(q); err != nil {
					t.Fatalf("version %d, statement %d: %v", v, n, err)
				}
			}
			crashed := t.TempDir()
			for _, suffix := range []string{"", "-wal"} {
				raw, err := os.ReadFile(path + suffix)
				if err == nil {
					err = os.WriteFile(filepath.Join(crashed, sqlitedb.DatabaseFileName)+suffix, raw, 0o600)
				}
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
			}
			c.Close()
			if err := os.Chmod(path, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, d := range []string{dir, crashed} {
				s := openStore(t, d)
				err := s.RunAndCommit(t.Context(), engine.UrgentClass, func(tx *engine.Tx) error {
					faults, err := integrity.FindSchemaFaults(engine.NewStoreForEngine(s.Engine).Conn())
					if len(faults) > 0 {
						t.Errorf("version %d, statement %d: %+v", v, n, faults)
					}
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				if n == len(database.SchemaMigrations[v]) {
					engine.CallEveryOperation(t, engine.NewStoreForEngine(s.Engine))
				}
				s.Close()
			}
		}
	}
}
