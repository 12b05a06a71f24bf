package sqlitedb

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// checkSchemaVersion returns the schema version of the database. It returns an error if that version is newer than the
// last one in migrations, unless the database says that this version of the program may use it.
func checkSchemaVersion(c *Conn, migrations [][]string) (version int64, err error) {
	version, err = c.QueryNumber(`PRAGMA user_version`)
	if err != nil || version >= 0 && version <= int64(len(migrations)) {
		return version, err
	}
	oldest, err := c.QueryNumber(`SELECT min_reader FROM meta`)
	if err == nil && oldest <= int64(len(migrations)) && oldest > 0 {
		return version, nil
	}
	// RequestFailed means that the table or column does not exist. Then this version may not use the database.
	if err != nil && database.ErrorKindOf(err) != database.RequestFailed {
		return version, err
	}
	return version, queue.Errorf(store.ErrNewerSchema.Code,
		"the database has schema version %d, but this queuectl supports versions up to %d; install the newer queuectl again",
		version, len(migrations))
}

// CheckDatabaseUsable returns an error if this program cannot use the database, or if the database has lost changes;
// see checkTableColumns and CheckNoCommitsLost. Call it before anything reads the tables.
func CheckDatabaseUsable(c *Conn, dir string) error {
	if err := checkTableColumns(c, dir); err != nil {
		return err
	}
	return CheckNoCommitsLost(c, dir)
}

// OldSchemaError returns the error for a database with an old schema that no service has opened to update it.
func OldSchemaError(dir string, version int64) error {
	return queue.Errorf(queue.CodeWrongState, "the database in %s has schema version %d, but this queuectl needs "+
		"version %d; start the service once with this queuectl to update it (waiting jobs can then start)",
		dir, version, len(database.SchemaMigrations))
}

// checkTableColumns returns an error if this program does not support the schema version, or if a table lacks a
// column. A database from before the first release may have the same version number but other tables.
func checkTableColumns(c *Conn, dir string) error {
	version, err := checkSchemaVersion(c, database.SchemaMigrations)
	if err != nil || version != int64(len(database.SchemaMigrations)) {
		return err
	}
	if made, err := tablesMatchStatements(c, slices.Concat(database.SchemaMigrations...)); made || err != nil {
		return err
	}
	fresh, err := OpenEmptyMemoryDatabase()
	if err != nil {
		return err
	}
	defer fresh.Close()
	want, err := listColumns(fresh)
	got, err2 := listColumns(c)
	if err := cmp.Or(err, err2); err != nil {
		return err
	}
	missing := slices.IndexFunc(want, func(column string) bool { return !slices.Contains(got, column) })
	if missing < 0 {
		return nil
	}
	return queue.Errorf(store.ErrNewerSchema.Code,
		"the database %s was created by another version of queuectl: it has no column %s; use that version, or move the "+
			"directory away to start with an empty queue", filepath.Join(dir, DatabaseFileName), want[missing])
}

// OpenEmptyMemoryDatabase returns a new database in memory that has the newest schema and no rows.
func OpenEmptyMemoryDatabase() (*Conn, error) {
	c, err := Open(":memory:")
	if err != nil {
		return nil, err
	}
	if err := Migrate(c, database.SchemaMigrations); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// tablesMatchStatements reports whether all tables were created by exactly the given statements. If so, the caller need
// not check their columns.
func tablesMatchStatements(c *Conn, createStatements []string) (bool, error) {
	tables, err := database.ReadRows(c, database.FirstColumnText, `SELECT sql FROM sqlite_schema WHERE type = 'table'`)
	return err == nil && !slices.ContainsFunc(createStatements, func(s string) bool {
		return strings.HasPrefix(s, `CREATE TABLE `) && !slices.Contains(tables, s)
	}), err
}

// listColumns returns all columns of the database, as table.column.
func listColumns(c *Conn) ([]string, error) {
	return database.ReadRows(c, database.FirstColumnText, `SELECT m.name || '.' || p.name FROM sqlite_schema m
		JOIN pragma_table_xinfo(m.name) p WHERE m.type = 'table' ORDER BY m.name, p.cid`)
}

// Migrate updates the schema to the newest version. Each step to the next version is one transaction, so a
// crash leaves a complete version.
func Migrate(c *Conn, migrations [][]string) error {
	version, err := checkSchemaVersion(c, migrations)
	if err != nil {
		return err
	}
	for v := version; v < int64(len(migrations)); v++ {
		if err := MigrateToNextVersion(c, int(v), migrations[v]); err != nil {
			return fmt.Errorf("cannot update the database to schema version %d: %w", v+1, err)
		}
	}
	return nil
}

// MigrateToNextVersion updates the schema from one version to the next.
func MigrateToNextVersion(c *Conn, oldVersion int, statements []string) error {
	return ExecInOneTx(c, append(statements, fmt.Sprintf(`PRAGMA application_id = %d`, queue.DatabaseApplicationID),
		fmt.Sprintf(`PRAGMA user_version = %d`, oldVersion+1)))
}

// ExecInOneTx executes statements in one transaction.
func ExecInOneTx(c *Conn, statements []string) error {
	return database.InTransaction(c, func() (err error) {
		for i := 0; i < len(statements) && err == nil; i++ {
			err = c.Exec(statements[i])
		}
		return err
	})
}
