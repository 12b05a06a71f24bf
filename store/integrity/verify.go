// Package integrity checks the SQLite file of a queue and its output files, corrects the stored counts, and
// restores backups.
//
// Start with VerifyDatabase, ExamineStoppedDatabase and PrepareRestore.
package integrity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// rebuildDatabaseAdvice is the advice to the user if the rows of the database contradict each other.
const rebuildDatabaseAdvice = "queuectl backup FILE, then queuectl service stop, then queuectl restore FILE; the " +
	"restore corrects counts, and creates what is missing in the database"

// restoreBackupAdvice is the advice for a database that is too damaged to be backed up.
const restoreBackupAdvice = "stop the service, copy the database's directory, then restore a backup with: " +
	"queuectl restore FILE"

// checkDirAdvice is the advice if a file or directory cannot be examined.
const checkDirAdvice = "check the directory's permissions and its disk"

// futureDateTolerance is how far in the future a stored time may be before it is reported.
const futureDateTolerance = time.Minute

// ExamineStoppedDatabase checks the database in a directory that no service uses. If thorough is set, it also checks
// all rows and output files.
func ExamineStoppedDatabase(dir string, outputs store.OutputDirs, thorough bool) []store.Finding {
	list := ExamineStateDir(dir)
	path := filepath.Join(dir, sqlitedb.DatabaseFileName)
	wrong := func(err error, advice string) []store.Finding {
		return append(list, store.Failure("database", err.Error(), advice))
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return append(list, store.Failure("database", path+" is missing", "put the file back, or restore a backup with: "+
			"queuectl restore FILE; to start with an empty queue, remove "+filepath.Join(dir, sqlitedb.HighWaterFileName)))
	case err != nil:
		return wrong(err, checkDirAdvice)
	case info.Mode().IsRegular() && info.Size() == 0:
		return append(list, emptyDatabaseFinding(dir, path))
	}
	c, err := sqlitedb.OpenWriter(path)
	if err != nil {
		return wrong(sqlitedb.ExplainOpenError(path, err), "") // no advice, because the error says what to do
	}
	defer c.Close()
	if err := sqlitedb.CheckNoCommitsLost(c, dir); err != nil {
		return wrong(err, "")
	}
	if n, err := c.QueryNumber(`SELECT count(*) FROM sqlite_schema`); err == nil && n == 0 {
		return append(list, emptyDatabaseFinding(dir, path))
	}
	list = append(list, ExamineDatabase(c)...)
	if !thorough {
		return list
	}
	files, err := ListOutputFiles(outputs.Dirs)
	if err != nil {
		return wrong(err, checkDirAdvice)
	}
	return append(list, VerifyDatabase(c, files, outputs, queue.UnixMillisOf(time.Now()))...)
}

// ExaminationFailedFinding returns what "queuectl doctor" reports if a service could not examine its database.
func ExaminationFailedFinding(err error) store.Finding {
	f := store.Failure("database", fmt.Sprintf("the database could not be examined: %v", err), "see the service's log")
	if errors.Is(err, context.DeadlineExceeded) {
		f.Message = "the database was not examined, because the service was too busy to do so in time"
		f.Advice = "try again: queuectl doctor"
	}
	return f
}

// emptyDatabaseFinding returns what "queuectl doctor" reports about a database without tables. It is a failure if
// the database has held jobs.
func emptyDatabaseFinding(dir, path string) store.Finding {
	mark := filepath.Join(dir, sqlitedb.HighWaterFileName)
	if _, err := os.Stat(mark); err == nil {
		return store.Failure("database", path+" is empty, but contained jobs before",
			"restore a backup with: queuectl restore FILE; or, to start over with an empty queue, remove "+mark)
	}
	return store.Finding{CheckName: "database", Level: store.LevelWarning, Message: path +
		" is empty: it has no tables yet",
		Advice: "start the service, which creates the tables"}
}

// ExamineStateDir checks a service's state directory: the file system, the disk and the permissions of the
// files. A service has a state directory even if its database is on a server.
func ExamineStateDir(dir string) (findings []store.Finding) {
	add := func(check string, level store.FindingLevel, advice, format string, args ...any) {
		findings = append(findings, store.Finding{CheckName: check, Level: level, Message: fmt.Sprintf(format, args...),
			Advice: advice})
	}
	system, err := sqlitedb.FileSystemOf(dir)
	switch {
	case err != nil:
		add("file system", store.LevelFailure, "check that the directory exists and can be read", "%v", err)
	case system.IsUnsupported:
		add("file system", store.LevelFailure, "move the queue to a local disk: queuectl backup FILE, then queuectl "+
			"restore FILE with another --dir", "%s is on %s, where locks and fsync are not reliable", dir, system.Name)
	case system.Warning != "":
		add("file system", store.LevelWarning, "choose a directory on another disk or volume with --dir", "%s is on %s: %s",
			dir, system.Name, system.Warning)
	case sqlitedb.UnsupportedFileSystemNames() == "":
		add("file system", store.LevelOK, "", "the file system of %s is not checked on this operating system", dir)
	default:
		add("file system", store.LevelOK, "", "%s is on %s, which is supported (unsupported file systems: %s)", dir,
			system.Name, sqlitedb.UnsupportedFileSystemNames())
	}
	if disk, err := sqlitedb.DiskSpaceOf(dir); err != nil {
		add("disk", store.LevelFailure, "check the disk", "cannot read the free space of the disk of %s: %v", dir, err)
	} else if disk.IsOutOfInodes {
		add("disk", store.LevelFailure, "remove files", "no files can be created: the disk of %s has no free inodes", dir)
	} else if disk.FreeBytes < sqlitedb.MinFreeBytesForNewJobs+sqlitedb.ReserveFileBytes {
		add("disk", store.LevelFailure, "free some space",
			"only %d KiB are free on the disk of %s; with less than %s, new jobs are refused", disk.FreeBytes>>10, dir,
			queue.FormatSize(sqlitedb.MinFreeBytesForNewJobs))
	} else {
		add("disk", store.LevelOK, "", "%d MiB are free", disk.FreeBytes>>20)
	}
	before := len(findings)
	for _, name := range append(append([]string{"."}, sqlitedb.DatabaseFileNames()...), sqlitedb.HighWaterFileName,
		sqlitedb.ReserveFileName) {
		path, look, open := filepath.Join(dir, name), os.Lstat, fs.FileMode(0o077)
		// The state directory may be a symbolic link, whose mode has no meaning, so check its target. Other
		// accounts may have access to the directory, for example to reach a socket in it, but no write
		// access.
		if name == "." {
			look, open = os.Stat, 0o022
		}
		info, err := look(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			add("permissions", store.LevelFailure, checkDirAdvice, "%v", err)
		} else if err = sqlitedb.CheckPrivate(path, info, open); err != nil {
			add("permissions", store.LevelFailure, "", "%v", err) // no advice, because the error says what to do
		} else if err = sqlitedb.CheckWritable(path, info); err != nil {
			add("permissions", store.LevelFailure, "", "%v", err)
		}
	}
	if len(findings) == before {
		add("permissions", store.LevelOK, "", "only the service can read or change the files of the queue")
	}
	return findings
}

// ExamineDatabase makes the quick checks of a database.
func ExamineDatabase(c *sqlitedb.Conn) []store.Finding {
	return slices.Concat(examineSchema(c), ExamineBatchFrames(c), examineDatabaseSize(c))
}

// examineDatabaseSize reports the size of the database and how much of it is free.
func examineDatabaseSize(c *sqlitedb.Conn) []store.Finding {
	pages, err := sqlitedb.CountPages(c)
	if err != nil {
		return []store.Finding{store.Failure("size", err.Error(), restoreBackupAdvice)}
	}
	return []store.Finding{{CheckName: "size", Level: store.LevelOK,
		Message: fmt.Sprintf("the database uses %d MiB, of which %d MiB are free for new rows",
			pages.Total*sqlitedb.PageSize>>20, pages.Free*sqlitedb.PageSize>>20)}}
}

// examineSchema reports tables and indexes that differ from those that the migrations create. It also reports
// if the newest rows are dated in the future.
func examineSchema(c *sqlitedb.Conn) (findings []store.Finding) {
	wrong, err := FindSchemaFaults(c)
	if err != nil {
		return []store.Finding{store.Failure("database", err.Error(), restoreBackupAdvice)}
	}
	for _, f := range wrong {
		findings = append(findings, store.Failure("database", f.message, cmp.Or(f.advice, rebuildDatabaseAdvice)))
	}
	version, err := c.QueryNumber(`PRAGMA user_version`)
	if err == nil && len(findings) == 0 {
		findings = append(findings, store.Finding{CheckName: "database", Level: store.LevelOK,
			Message: fmt.Sprintf("schema version %d, all tables and indexes exist", version)})
	}
	for what, q := range map[string]string{"job": `SELECT created_at FROM jobs ORDER BY seq DESC LIMIT 1`,
		"event": `SELECT at FROM events ORDER BY seq DESC LIMIT 1`} {
		if at, err := c.QueryNumber(q); err == nil &&
			queue.UnixMillis(at) > queue.UnixMillisOf(time.Now()).Add(futureDateTolerance) {
			findings = append(findings, store.Failure("clock",
				fmt.Sprintf("the newest %s has a date in the future: %s", what, queue.UnixMillis(at)), clockAdvice))
		}
	}
	return findings
}

// ExamineBatchFrames reports how many jobs of batches were lost because the database is damaged. A frame holds the
// jobs that one request has added to a batch.
func ExamineBatchFrames(c *sqlitedb.Conn) (findings []store.Finding) {
	var n, first, last int64
	_, err := database.ScanFirstRow(c, []any{&n, &first, &last},
		`SELECT sum(count), min(first), max(last) FROM frames INDEXED BY frames_batch WHERE batch < 0`)
	switch {
	case err != nil:
		return []store.Finding{store.Failure("batches", err.Error(), restoreBackupAdvice)}
	case n == 0:
		return nil
	}
	return []store.Finding{store.Failure("batches",
		fmt.Sprintf("%d jobs of committed batches could not be read and are not in the queue; their numbers "+
			"are between %d and %d", n, first, last),
		"enqueue again the jobs that queuectl show does not find; to clear this message: "+rebuildDatabaseAdvice)}
}

// schemaFault describes a table, index, trigger or view that differs from what the migrations create.
// createSQL creates a missing object. If advice is "", the advice is rebuildDatabaseAdvice.
type schemaFault struct{ message, createSQL, advice string }

// FindSchemaFaults returns the differences between the schema of a database and that of a new one.
func FindSchemaFaults(c *sqlitedb.Conn) (faults []schemaFault, err error) {
	fresh, err := sqlitedb.OpenEmptyMemoryDatabase()
	if err != nil {
		return nil, err
	}
	defer fresh.Close()
	read := func(c *sqlitedb.Conn) (map[string]string, error) {
		byName := map[string]string{}
		err := database.ForEachRow(c, func(r database.Row) {
			byName[r.Text(0)] = strings.Join(strings.Fields(r.Text(1)), " ")
		}, `SELECT type || ' ' || name, sql FROM sqlite_schema
			WHERE sql IS NOT NULL AND name <> 'outputs' ORDER BY type, name`)
		return byName, err
	}
	want, err := read(fresh)
	if err != nil {
		return nil, err
	}
	got, err := read(c)
	if err != nil {
		return nil, err
	}
	version, err := c.QueryNumber(`PRAGMA user_version`)
	newer := version > int64(len(database.SchemaMigrations)) // true if a newer queuectl may have added objects
	for name, sql := range want {
		switch there, ok := got[name]; {
		case !ok:
			faults = append(faults, schemaFault{message: "the " + name + " is missing", createSQL: sql})
		case there != sql && !newer:
			faults = append(faults, schemaFault{message: "the " + name + " is not as queuectl creates it; the database " +
				"contains: " + there})
		}
	}
	for name, sql := range got {
		if kind, _, _ := strings.Cut(name, " "); want[name] == "" && !newer && (kind == "trigger" || kind == "view") {
			faults = append(faults, schemaFault{message: "the " + name + " was not created by queuectl: " + sql,
				advice: "if you do not need it, stop the service, then drop it with the program sqlite3"})
		}
	}
	return faults, err
}

// CheckDatabasePages returns an error if SQLite finds the database damaged.
func CheckDatabasePages(c *sqlitedb.Conn) error {
	verdict, err := database.ReadRows(c, database.FirstColumnText, `PRAGMA integrity_check(5)`)
	if err != nil {
		return err
	}
	if text := strings.Join(verdict, "; "); text != "ok" {
		return fmt.Errorf("SQLite reports damage: %s", text)
	}
	return nil
}

// VerifyDatabase checks a copy of the database: whether its rows contradict each other, and whether the output files
// match the rows.
func VerifyDatabase(c *sqlitedb.Conn, outputFiles map[string]bool, outputs store.OutputDirs,
	now queue.UnixMillis) (findings []store.Finding) {
	report := func(name, okMessage string, foundFaults []fault, err error) {
		if err != nil { // the database is so damaged that its rows cannot be read
			foundFaults = append(foundFaults, fault{err.Error(), restoreBackupAdvice})
		}
		for i, f := range foundFaults {
			if i == maxFaultsPerKind {
				findings = append(findings,
					store.Failure(name, fmt.Sprintf("%d more problems of this kind", len(foundFaults)-i), f.advice))
				break
			}
			findings = append(findings, store.Failure(name, f.message, f.advice))
		}
		if len(foundFaults) == 0 {
			findings = append(findings, store.Finding{CheckName: name, Level: store.LevelOK, Message: okMessage})
		}
	}
	check := func(name, okMessage, advice string, texts []string, err error) {
		var foundFaults []fault
		for _, text := range texts {
			foundFaults = append(foundFaults, fault{text, advice})
		}
		report(name, okMessage, foundFaults, err)
	}
	check("integrity", "SQLite finds no damage", restoreBackupAdvice, nil, CheckDatabasePages(c))
	counts, err := FindWrongStoredCounts(c)
	check("counters", "the stored counts match the stored jobs", rebuildDatabaseAdvice, counts, err)
	dates, err := FindFutureDates(c, now)
	check("clock", "no date is in the future", clockAdvice, dates, err)
	rows, err := FindContradictingRows(c)
	check("rows", "all rows are consistent",
		"this is a bug in queuectl: keep a copy with queuectl backup FILE, and report it", rows, err)
	findings = append(findings, ExamineBatchFrames(c)...)
	check("indexes", "all checked queries use an index", rebuildDatabaseAdvice, findQueriesWithoutIndex(c), nil)
	found, err := findOutputFaults(c, outputFiles, outputs)
	report("outputs", fmt.Sprintf("all %d output files are present, belong to an attempt and have correct checksums",
		len(outputFiles)), found, err)
	return findings
}

// fault describes something wrong that VerifyDatabase found, and what the user can do about it.
type fault struct{ message, advice string }

// clockAdvice is the advice to the user about dates in the future.
const clockAdvice = "if the clock of the machine is wrong, set it; stored dates do not change, so this is reported " +
	"until they have passed"

// maxFaultsPerKind is the maximum number of faults of one kind that are listed.
const maxFaultsPerKind = 10

// wrongRowsQuery is a query for rows that are wrong. It selects the number of these rows and the name of one of them.
// messageFormat contains verbs for these two values.
type wrongRowsQuery struct{ messageFormat, sql string }

// FindFutureDates describes rows with dates more than futureDateTolerance after the time now.
func FindFutureDates(c database.Conn, now queue.UnixMillis) ([]string, error) {
	return findWrongRows(c, []wrongRowsQuery{
		{"%d jobs have dates in the future, for example job %s",
			`SELECT count(*), min(id) FROM jobs WHERE created_at > ?1 OR updated_at > ?1 OR started_at > ?1 OR ended_at > ?1`},
		{"%d attempts have dates in the future, for example one of job number %s (column seq)",
			`SELECT count(*), min(seq) || '' FROM attempts WHERE started_at > ?1 OR ended_at > ?1`},
		{"%d events have dates in the future, for example event %s",
			`SELECT count(*), min(seq) || '' FROM events WHERE at > ?`},
	}, int64(now.Add(futureDateTolerance)))
}

// FindContradictingRows describes rows that contradict each other.
func FindContradictingRows(c database.Conn) ([]string, error) {
	return findWrongRows(c, []wrongRowsQuery{
		{"%d jobs have a place in the queue that contradicts their state, for example job %s",
			`SELECT count(*), min(id) FROM jobs WHERE CASE state
				WHEN 3 THEN place NOT IN (1, 2) WHEN 4 THEN place NOT IN (1, 2) WHEN 5 THEN place <> 3 ELSE place <> 0 END`},
		{"%d jobs are ready but would never start, because they are in no lane (a group of waiting jobs), for " +
			"example job %s", `SELECT count(*), min(id) FROM jobs WHERE place = 1 AND NOT EXISTS (SELECT 1 FROM lanes
				WHERE lanes.id = jobs.lane AND lanes.queue = jobs.queue AND lanes.uid = jobs.uid)`},
		{"%d jobs, for example job %s, start too late, because another job is wrongly first in their lane (a group of " +
			"waiting jobs)",
			`SELECT count(*), min(jobs.id) FROM jobs JOIN lanes ON lanes.id = jobs.lane WHERE place = 1
				AND lanes.demands <> '' AND (shut = -9223372036854775808 OR (rank, seq) < (head_rank, head_seq))
				AND (SELECT ' ' || reserved FROM meta) NOT LIKE '% ' || seq || '/%'`},
		{"%d groups of waiting jobs (lanes) may never start, because they wait for a gate (a limit such as a lock) that " +
			"is missing, for example lane %s",
			`SELECT count(*), min(id) || '' FROM lanes WHERE demands <> '' AND shut > 0
				AND NOT EXISTS (SELECT 1 FROM gates WHERE gates.id = shut)`},
		{"%d jobs are blocked but have no open dependency, for example job %s",
			`SELECT count(*), min(id) FROM jobs WHERE state = 1
				AND NOT EXISTS (SELECT 1 FROM edges WHERE edges.child = jobs.seq AND met = 0)`},
		{"%d dependencies remain of jobs that are missing in the database, for example of job number %s (column seq)",
			`SELECT count(*), min(child) || '' FROM edges WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.seq = edges.child)
				AND NOT EXISTS (SELECT 1 FROM removed WHERE removed.seq = edges.child)`},
		{"%d jobs, for example job %s, depend on a job that does not exist",
			`SELECT count(*), min(jobs.id) FROM edges JOIN jobs ON jobs.seq = child WHERE state = 1 AND met = 0
				AND NOT EXISTS (SELECT 1 FROM jobs AS p WHERE p.seq = parent)
				AND NOT EXISTS (SELECT 1 FROM ended WHERE ended.parent = edges.parent)
				AND NOT EXISTS (SELECT 1 FROM frames WHERE parent BETWEEN first AND last)`},
		{"%d attempts remain of jobs that are missing in the database, for example of job number %s (column seq)",
			`SELECT count(*), min(seq) || '' FROM attempts WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.seq = attempts.seq)
				AND NOT EXISTS (SELECT 1 FROM removed WHERE removed.seq = attempts.seq)`},
		{"%d jobs, for example job %s, have a number (seq) above the last one that was assigned",
			`SELECT count(*), min(id) FROM jobs WHERE seq >= (SELECT next_seq FROM meta)`},
		{"%d ids belong to two jobs each (the id of one job is the number of the other), for example id %s",
			`SELECT count(*), min(id) FROM jobs AS other WHERE id = CAST(seq AS TEXT) AND EXISTS (SELECT 1 FROM jobs
				INDEXED BY jobs_id WHERE jobs.id = other.id AND jobs.id <> CAST(jobs.seq AS TEXT))`},
		{"the last attempt of %d jobs, for example of job %s, is stored twice, or in a place that only completed jobs use",
			`SELECT count(*), min(id) FROM jobs WHERE ran <> '' AND (state <> 6
				OR EXISTS (SELECT 1 FROM attempts WHERE attempts.seq = jobs.seq AND n = runs))`},
		{"the last attempt of %d jobs cannot be read, for example of job %s",
			`SELECT count(*), min(id) FROM jobs WHERE ran <> '' AND ran NOT LIKE '% % % % %'`},
		{"%d jobs have more attempts than their attempt counter says, for example job %s",
			`SELECT count(*), min(id) FROM jobs
				WHERE EXISTS (SELECT 1 FROM attempts WHERE attempts.seq = jobs.seq AND n > runs)`},
	})
}

// findWrongRows runs queries with the same arguments, and describes the rows that they find.
func findWrongRows(c database.Conn, queries []wrongRowsQuery, args ...any) (faults []string, err error) {
	for _, q := range queries {
		n, example := int64(0), ""
		_, err := database.ScanFirstRow(c, []any{&n, &example}, q.sql, args...)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			faults = append(faults, fmt.Sprintf(q.messageFormat, n, example))
		}
	}
	return faults, nil
}

// findQueriesWithoutIndex returns the frequent queries that SQLite would execute without an index.
func findQueriesWithoutIndex(c *sqlitedb.Conn) (faults []string) {
	for _, q := range []string{
		`SELECT seq FROM jobs INDEXED BY jobs_ready
			WHERE place = 1 AND lane = 0 AND (rank, seq) >= (0, 0) ORDER BY rank, seq`,
		`SELECT id FROM lanes INDEXED BY lanes_open
			WHERE demands <> '' AND shut = 0 AND queue = 'x' AND uid > 1 ORDER BY uid, head_rank, head_seq`,
		`SELECT id FROM lanes INDEXED BY lanes_shut
			WHERE demands <> '' AND shut <> 0 AND shut = 1 AND queue = 'x' ORDER BY head_rank, head_seq`,
		`SELECT id FROM lanes INDEXED BY lanes_shut_user WHERE demands <> '' AND shut <> 0 AND shut = 1
			AND queue = 'x' AND uid > 1 ORDER BY uid, head_rank, head_seq`,
		`SELECT id FROM lanes INDEXED BY lanes_shut_user WHERE demands <> '' AND shut <> 0 AND shut = 1
			AND queue > 'x' ORDER BY queue, uid, head_rank, head_seq`,
		`SELECT id FROM lanes INDEXED BY lanes_user WHERE demands <> '' AND uid = 1 ORDER BY head_rank, head_seq`,
		`SELECT seq FROM jobs INDEXED BY jobs_timed WHERE place = 2 AND due_at <= 0 ORDER BY due_at`,
		`SELECT seq FROM jobs INDEXED BY jobs_state WHERE state = 3 AND seq < 0 ORDER BY seq DESC`,
		`SELECT seq FROM jobs INDEXED BY jobs_ended
			WHERE kept = 0 AND state = 6 AND state > 5 AND ended_at < 0 ORDER BY ended_at`,
		`SELECT seq FROM jobs INDEXED BY jobs_id WHERE id = 'x' AND id <> CAST(seq AS TEXT)`,
		`SELECT n FROM attempts WHERE seq = 1 ORDER BY n`,
	} {
		err := database.ForEachRow(c, func(r database.Row) {
			if plan := r.Text(3); strings.HasPrefix(plan, "SCAN") || strings.Contains(plan, "TEMP B-TREE") {
				faults = append(faults, plan+": "+strings.Join(strings.Fields(q), " "))
			}
		}, `EXPLAIN QUERY PLAN `+q)
		if err != nil {
			faults = append(faults, err.Error())
		}
	}
	return faults
}
