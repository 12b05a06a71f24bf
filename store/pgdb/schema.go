package pgdb

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// A service uses the tables on a server only if they are exactly those that this build of queuectl would
// create. Another build may have created other tables with the same version number, or an administrator may
// have changed them.
//
// One query describes the schema with one line for each table, column, index, constraint and trigger, and for
// the function enqueue. A hash of these lines and of the statements that create the tables, the fingerprint,
// is stored with the version number. The tables are accepted if their fingerprint is equal to the stored one.
//
// If the fingerprints differ, the statements create temporary tables in a transaction that is rolled back,
// and the same query describes these tables. Then both descriptions come from the same server, so its version
// makes no difference, and the error can name the first difference. If the descriptions are equal, the new
// fingerprint is stored.
//
// An administrator may add views, tables, functions and indexes that are not unique, because they do not
// affect the service.

// upgradeScriptFrom returns the statements that upgrade the tables from oldVersion to the newest version; 0 means that
// no tables exist. migrations[v] upgrades version v of any database, and postgresMigrations[v] is added on PostgreSQL.
func upgradeScriptFrom(oldVersion int, migrations, postgresMigrations [][]string) (script []string) {
	if oldVersion == 0 {
		script = append(script, `CREATE TABLE schema (version BIGINT NOT NULL, fingerprint TEXT NOT NULL)`,
			`INSERT INTO schema VALUES (0, '')`)
	}
	for i := oldVersion; i < len(migrations); i++ {
		for _, statement := range migrations[i] {
			script = append(script, translateCreateTable(statement))
		}
		script = append(script, postgresMigrations[i]...)
	}
	return script
}

type schemaPart struct {
	name       string // kind and name of the part, like "column jobs.seq"
	definition string // SQL definition; of a column, like "bigint NOT NULL"
}

var (
	createTablePattern = regexp.MustCompile(`^CREATE TABLE (\w+)`)
	createIndexPattern = regexp.MustCompile(`^CREATE (?:UNIQUE )?INDEX (\w+)`)
)

// createdObjectNames returns the names of the objects that a script creates, separated by spaces. The pattern
// matches a CREATE statement and captures the name.
func createdObjectNames(script []string, pattern *regexp.Regexp) string {
	var names []string
	for _, s := range script {
		if found := pattern.FindStringSubmatch(s); found != nil {
			names = append(names, found[1])
		}
	}
	return strings.Join(names, " ")
}

// describeSchemaSQL returns the query that describes the tables in a schema, their indexes, and the function
// enqueue. The parameters ?1 and ?2 list the names of the tables and indexes. Unique indexes are described
// even if ?2 does not list them, because they affect writes.
func describeSchemaSQL(schemaName string) string {
	return `WITH own (oid, name, how) AS (
		SELECT oid, relname, concat_ws(', ', CASE WHEN relrowsecurity THEN 'row security' END,
				CASE WHEN relhasrules THEN 'rules' END)
			FROM pg_class WHERE relnamespace = ` + schemaName + ` AND relkind IN ('r', 'p')
			AND relname = ANY (string_to_array(?1, ' '))
	), found (place, what, how) AS (
		SELECT 0, 'table ' || name, how FROM own
		UNION ALL SELECT 1, 'column ' || own.name || '.' || a.attname,
				concat_ws(' ', format_type(a.atttypid, a.atttypmod), 'COLLATE ' || c.collname,
					CASE WHEN a.attnotnull THEN 'NOT NULL' END, 'IDENTITY ' || nullif(a.attidentity::text, ''),
					'GENERATED ' || nullif(a.attgenerated::text, ''), 'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid))
			FROM own JOIN pg_attribute AS a ON a.attrelid = own.oid
			LEFT JOIN pg_attrdef AS d ON d.adrelid = own.oid AND d.adnum = a.attnum
			LEFT JOIN pg_collation AS c ON c.oid = a.attcollation AND c.collname <> 'default'
			WHERE a.attnum > 0 AND NOT a.attisdropped
		UNION ALL SELECT 2, 'index ' || i.relname, regexp_replace(pg_get_indexdef(i.oid), ' ON [a-z_]+[.]', ' ON ')
				|| CASE WHEN x.indisvalid THEN '' ELSE ', not valid' END
			FROM own JOIN pg_index AS x ON x.indrelid = own.oid JOIN pg_class AS i ON i.oid = x.indexrelid
			WHERE x.indisunique AND x.indisvalid OR i.relname = ANY (string_to_array(?2, ' '))
		UNION ALL SELECT 3, 'constraint ' || c.conname || ' of ' || own.name, pg_get_constraintdef(c.oid)
			FROM own JOIN pg_constraint AS c ON c.conrelid = own.oid WHERE c.contype IN ('c', 'f', 'p', 'u', 'x')
		UNION ALL SELECT 4, 'trigger ' || t.tgname || ' of ' || own.name, pg_get_triggerdef(t.oid)
			FROM own JOIN pg_trigger AS t ON t.tgrelid = own.oid WHERE NOT t.tgisinternal
		UNION ALL SELECT 5, 'function ' || p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
				concat_ws(' ', pg_get_function_result(p.oid), l.lanname, p.prosecdef, p.proconfig, p.prosrc)
			FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
			WHERE p.pronamespace = ` + schemaName + ` AND p.proname = 'enqueue'
	)
	SELECT what, how FROM found ORDER BY place, what COLLATE "C"`
}

// describeSchema describes those objects in a schema that a script would create.
func describeSchema(c *Conn, schemaName string, script []string) (parts []schemaPart, err error) {
	return database.ReadRows(c, func(r database.Row) schemaPart { return schemaPart{r.Text(0), r.Text(1)} },
		describeSchemaSQL(schemaName), createdObjectNames(script, createTablePattern),
		createdObjectNames(script, createIndexPattern))
}

// schemaOIDSQL is an SQL expression for the oid of the service's schema.
const schemaOIDSQL = `to_regnamespace('` + SchemaName + `')`

// schemaFingerprint returns a hash of a schema's description and of the statements that create it.
func schemaFingerprint(parts []schemaPart, script []string) string {
	h := sha256.New()
	for _, l := range parts {
		fmt.Fprintf(h, "%q %q\n", l.name, l.definition)
	}
	for _, s := range append(slices.Clip(script), enqueueFunctionStatements()...) {
		fmt.Fprintf(h, "%q\n", s)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// checkTablesMatchScript returns an error that names the first difference if the tables differ from those that a script
// creates. newFingerprint is a fingerprint to store, or "" if the stored one is up to date.
func checkTablesMatchScript(c *Conn, script []string) (newFingerprint string, err error) {
	lines, err := describeSchema(c, schemaOIDSQL, script)
	if err != nil {
		return "", err
	}
	// Read the row as JSON: the table of another version may lack the column fingerprint, and SQL that names
	// this column would then fail.
	known, err := database.QueryText(c, `SELECT to_jsonb(schema) ->> 'fingerprint' FROM schema`)
	is := schemaFingerprint(lines, script)
	if err != nil || is == known {
		return "", err
	}
	want, err := describeTablesOfScript(c, script)
	// The script may have failed because the role has no right to create temporary tables.
	if err != nil && database.ErrorKindOf(err) == database.RequestFailed {
		return "", schemaMismatchError(c, fmt.Sprintf("its tables differ from those of this version "+
			"(queuectl can name the difference if the role in the URL has the privilege TEMPORARY on the database: %v)",
			serverErrorMessage(err)))
	}
	if err != nil {
		return "", err
	}
	if difference := schemaDifference(want, lines); difference != "" {
		return "", schemaMismatchError(c, difference)
	}
	return is, nil
}

// serverErrorMessage returns the server's error message without the statement that failed.
func serverErrorMessage(err error) string {
	if refused, isServerError := errors.AsType[StatementError](err); isServerError {
		return refused.Message
	}
	return err.Error()
}

// describeTablesOfScript lets a script create temporary tables, describes them, and rolls everything back.
func describeTablesOfScript(c *Conn, script []string) (parts []schemaPart, err error) {
	function := strings.Replace(enqueueFunctionStatements()[0], " FUNCTION ", " FUNCTION pg_temp.", 1)
	statements := slices.Concat([]string{`BEGIN`, `SET LOCAL search_path = pg_temp`}, script, []string{function})
	for _, s := range statements {
		if err == nil {
			err = c.ExecScript(c.callCtx, s)
		}
	}
	if err == nil {
		parts, err = describeSchema(c, `pg_my_temp_schema()`, script)
	}
	return parts, cmp.Or(err, c.ExecScript(c.callCtx, `ROLLBACK`))
}

// schemaDifference returns the first difference between two descriptions of a schema, or "" if they are
// equal.
func schemaDifference(want, got []schemaPart) string {
	has, wanted := map[string]string{}, map[string]bool{}
	for _, l := range got {
		has[l.name] = l.definition
	}
	for _, l := range want {
		wanted[l.name] = true
		switch how, found := has[l.name]; {
		case !found:
			return "it has no " + l.name
		case how != l.definition && strings.HasPrefix(l.name, "function "):
			return fmt.Sprintf("its %s is different", l.name)
		case how != l.definition:
			return fmt.Sprintf("its %s is %q instead of %q", l.name, how, l.definition)
		}
	}
	for _, l := range got {
		if !wanted[l.name] {
			return fmt.Sprintf("it has the %s, which this version does not know", l.name)
		}
	}
	return ""
}

// SchemaMismatchAdvice ends the error for a database whose tables differ from those of this program.
const SchemaMismatchAdvice = `use that version, undo the change, or set the setting "store" to an empty database`

// schemaMismatchError returns the error for a database whose tables differ from those of this program.
func schemaMismatchError(c *Conn, difference string) error {
	name, err := database.QueryText(c, `SELECT current_database()`)
	return cmp.Or(err, error(queue.Errorf(store.ErrNewerSchema.Code,
		"the database %q was created by another version of queuectl or was changed: %s; %s",
		name, difference, SchemaMismatchAdvice)))
}

// schemaVersion returns the version of the tables; 0 if none exist.
func schemaVersion(c *Conn, script []string) (version int64, err error) {
	tables, err := database.ReadRows(c, database.FirstColumnText, `SELECT relname FROM pg_class
		WHERE relnamespace = `+schemaOIDSQL+` AND relname = ANY (string_to_array(?, ' ')) ORDER BY relname`,
		createdObjectNames(script, createTablePattern))
	switch {
	case err != nil || len(tables) == 0:
		return 0, err
	case !slices.Contains(tables, "schema"):
		return 0, schemaMismatchError(c, fmt.Sprintf(`it has a table %q but no table "schema"`, tables[0]))
	case !slices.Contains(tables, "meta"):
		return 0, schemaMismatchError(c, `it has no table "meta"`)
	}
	return c.QueryNumber(`SELECT version FROM schema`)
}

// checkSchemaUsable returns an error if this program cannot use the tables: if a newer version excludes this
// program with its min_reader, or if tables of this version differ from the expected ones. newFingerprint is
// the result of checkTablesMatchScript.
func checkSchemaUsable(c *Conn, version int64, migrations, postgresMigrations [][]string) (newFingerprint string,
	err error) {
	if version == int64(len(migrations)) {
		return checkTablesMatchScript(c, upgradeScriptFrom(0, migrations, postgresMigrations))
	}
	oldest, err := c.QueryNumber(`SELECT min_reader FROM meta`)
	if err == nil && (oldest > int64(len(migrations)) || oldest <= 0) {
		err = queue.Errorf(store.ErrNewerSchema.Code,
			"the database has schema version %d, but this queuectl supports versions up to %d; install the newer queuectl again",
			version, len(migrations))
	}
	return "", err
}

// CheckTables returns the version of the tables, or 0 if none exist. It returns an error if this program
// cannot use them; see checkSchemaUsable.
func CheckTables(c *Conn) (version int64, err error) {
	version, err = schemaVersion(c, upgradeScriptFrom(0, database.SchemaMigrations, PostgresMigrations))
	if err == nil && version > 0 {
		_, err = checkSchemaUsable(c, version, database.SchemaMigrations, PostgresMigrations)
	}
	return version, err
}

// checkExistingTables checks tables with this program's version or a newer one. It stores their fingerprint
// if the stored one is out of date.
func checkExistingTables(c *Conn, version int64, migrations, postgresMigrations [][]string) error {
	newFingerprint, err := checkSchemaUsable(c, version, migrations, postgresMigrations)
	if err == nil && newFingerprint != "" {
		err = c.Exec(`UPDATE schema SET fingerprint = ?`, newFingerprint)
	}
	return err
}

// EnsureTables creates the tables, upgrades them, or checks them if they need no upgrade. An upgrade is one
// transaction. If two programs call EnsureTables at the same time, one waits for the other. Services of the
// previous version keep running.
func EnsureTables(c *Conn, migrations, postgresMigrations [][]string) (err error) {
	run := func(statement string) error {
		return c.ExecScript(context.Background(), statement)
	}
	if err := CheckObjectOwners(c); err != nil {
		return err
	}
	all := upgradeScriptFrom(0, migrations, postgresMigrations)
	version, err := schemaVersion(c, all)
	if err != nil || version >= int64(len(migrations)) {
		return cmp.Or(err, checkExistingTables(c, version, migrations, postgresMigrations))
	}
	defer func() {
		if err != nil {
			run(`ROLLBACK`) // report the first error, not that of the rollback
		}
	}()
	err = run(`BEGIN; SET LOCAL lock_timeout = ` + schemaLockTimeout + `; SET LOCAL search_path = ` + SchemaName +
		`; SELECT pg_advisory_xact_lock(` + fmt.Sprint(schemaChangeLockID) + `)`)
	if err != nil {
		return err
	}
	if version, err = schemaVersion(c, all); err != nil {
		return err
	}
	if version >= int64(len(migrations)) { // another program has just upgraded the tables
		return cmp.Or(run(`ROLLBACK`), checkExistingTables(c, version, migrations, postgresMigrations))
	}
	script := append([]string{`CREATE SCHEMA IF NOT EXISTS ` + SchemaName},
		upgradeScriptFrom(int(version), migrations, postgresMigrations)...)
	for _, statement := range append(script, enqueueFunctionStatements()...) {
		if err := run(statement); err != nil {
			return err
		}
	}
	lines, err := describeSchema(c, schemaOIDSQL, all)
	if err != nil {
		return err
	}
	err = run(fmt.Sprintf(`UPDATE schema SET version = %d, fingerprint = '%s'`, len(migrations),
		schemaFingerprint(lines, all)))
	if err != nil {
		return err
	}
	if err := CheckObjectOwners(c); err != nil { // another role may have created the schema since the first check
		return err
	}
	return run(`COMMIT`)
}
