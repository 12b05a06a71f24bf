package sqlite

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// createDatabase creates a database with jobCount jobs and closes it, so that its main file contains everything.
func createDatabase(t *testing.T, jobCount int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	s := openStore(t, dir)
	enqueueJobs(t, s, jobCount)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func fileChecksum(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(raw))
}

// expectOpenRefused checks that opening the database in dir fails with an error that contains wantText, and that
// the database file does not change.
func expectOpenRefused(t *testing.T, dir, wantText string) error {
	t.Helper()
	path := filepath.Join(dir, sqlitedb.DatabaseFileName)
	before, _ := os.ReadFile(path)
	s, err := Open(t.Context(), Options{Dir: dir, RankOrder: defaultJobOrder})
	if err == nil {
		s.Close()
		t.Fatalf("it was opened, want an error with %q", wantText)
	}
	if !strings.Contains(err.Error(), wantText) {
		t.Errorf("got %v, want it to say %q", err, wantText)
	}
	if after, _ := os.ReadFile(path); string(after) != string(before) {
		t.Error("the file was changed")
	}
	return err
}

func execOnClosedDatabase(t *testing.T, dir string, statements ...string) {
	t.Helper()
	c, err := sqlitedb.OpenWriter(filepath.Join(dir, sqlitedb.DatabaseFileName))
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range statements {
		if err := c.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// A database with a newer schema is rejected, and the error names both versions. The database is opened if its table
// meta says that this version may use it.
func TestNewerSchemaIsRefused(t *testing.T) {
	dir := createDatabase(t, 1)
	newer := len(database.SchemaMigrations) + 7
	execOnClosedDatabase(t, dir, fmt.Sprintf(`PRAGMA user_version = %d`, newer))
	s := openStore(t, dir)
	enqueueJobs(t, s, 1)
	s.Close()
	execOnClosedDatabase(t, dir, fmt.Sprintf(`UPDATE meta SET min_reader = %d`, len(database.SchemaMigrations)+1))
	before := fileChecksum(t, filepath.Join(dir, sqlitedb.DatabaseFileName))
	err := expectOpenRefused(t, dir, fmt.Sprintf("schema version %d, but this queuectl supports versions up to %d", newer,
		len(database.SchemaMigrations)))
	if !errors.Is(err, store.ErrNewerSchema) {
		t.Errorf("got %v, want %v", err, store.ErrNewerSchema)
	}
	if fileChecksum(t, filepath.Join(dir, sqlitedb.DatabaseFileName)) != before {
		t.Error("the file was changed")
	}
	// A newer file that does not say which versions may read it is rejected.
	execOnClosedDatabase(t, dir, `ALTER TABLE meta DROP COLUMN min_reader`)
	if err := expectOpenRefused(t, dir, fmt.Sprintf("schema version %d", newer)); !errors.Is(err, store.ErrNewerSchema) {
		t.Errorf("got %v, want %v", err, store.ErrNewerSchema)
	}
	execOnClosedDatabase(t, dir, `PRAGMA user_version = -1`)
	if err := expectOpenRefused(t, dir, "schema version -1"); !errors.Is(err, store.ErrNewerSchema) {
		t.Errorf("got %v, want %v", err, store.ErrNewerSchema)
	}
}

// A database whose tables are not those of this program is rejected before anything reads them. The error names
// the file and the next step, and the file is not changed.
func TestOpenRefusesUnknownTables(t *testing.T) {
	for what, statement := range map[string]string{
		"a column of jobs":     `ALTER TABLE jobs DROP COLUMN stored`,
		"a column of the mark": `ALTER TABLE meta DROP COLUMN commits`,
		"a column read later":  `ALTER TABLE settings DROP COLUMN at`,
		"a table":              `DROP TABLE usual`,
	} {
		t.Run(what, func(t *testing.T) {
			dir := createDatabase(t, 1)
			execOnClosedDatabase(t, dir, statement)
			err := expectOpenRefused(t, dir, filepath.Join(dir, sqlitedb.DatabaseFileName))
			if !errors.Is(err, store.ErrNewerSchema) || !strings.Contains(err.Error(), "; ") {
				t.Errorf("got %v, want %v with a next step", err, store.ErrNewerSchema)
			}
			if _, err := OpenReadOnly(Options{Dir: dir, RankOrder: defaultJobOrder}); !errors.Is(err, store.ErrNewerSchema) {
				t.Errorf("read only: got %v, want %v", err, store.ErrNewerSchema)
			}
		})
	}
}

// A missing, empty or unrelated database file is never replaced by an empty queue if the
// directory has had a queue.
func TestLostDatabaseIsNotReplacedByAnEmptyOne(t *testing.T) {
	for what, c := range map[string]struct {
		harm func(path string) error
		says string
	}{
		"missing":   {os.Remove, "missing"},
		"truncated": {func(p string) error { return os.Truncate(p, 0) }, "empty"},
		"garbage": {func(p string) error { return os.WriteFile(p, []byte(strings.Repeat("garbage!", 4096)), 0o600) },
			"damaged"},
		"cut in half": {func(p string) error { return os.Truncate(p, 12345) }, "damaged"},
		"a directory": {func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) }, "regular"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := createDatabase(t, 100)
			if err := c.harm(filepath.Join(dir, sqlitedb.DatabaseFileName)); err != nil {
				t.Fatal(err)
			}
			expectOpenRefused(t, dir, c.says)
		})
	}
}

// A crash during the first start can leave an empty database file. The next start uses it, since
// there is no queue to lose.
func TestOpenUsesEmptyFileOfCrashedStart(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, sqlitedb.DatabaseFileName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	enqueueJobs(t, openStore(t, dir), 1)
}

// Jobs are never lost silently if the header of a page is damaged: opening fails, reading fails, or all
// jobs are found. If the last service had an I/O error, the next start checks the whole database, and
// opening a damaged one fails.
func TestDamagedPagesNeverLoseJobsSilently(t *testing.T) {
	const jobs = 150
	dir := createDatabase(t, jobs)
	whole, err := os.ReadFile(filepath.Join(dir, sqlitedb.DatabaseFileName))
	if err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]int{}
	for page := 0; page < len(whole); page += 4096 {
		head := page
		if page == 0 {
			head = 100 // page 1 begins with the file header, so its page header is here
		}
		damaged := slices.Clone(whole)
		damaged[head] ^= 0x08
		for _, doubt := range []bool{false, true} {
			outcomes[openDatabaseAndClassify(t, damaged, doubt, jobs)]++
		}
	}
	if outcomes["refused"] == 0 || outcomes["whole"] == 0 {
		t.Errorf("want some refused and some whole: %v", outcomes)
	}
	t.Log(outcomes)
}

// openDatabaseAndClassify opens a database with the given contents and returns what happens: "refused" if opening
// fails, "unreadable" if reading fails, or "whole". If hasStartupCheckFile is set, the marker file of an earlier I/O
// error exists.
func openDatabaseAndClassify(t *testing.T, databaseContents []byte, hasStartupCheckFile bool, jobCount int) string {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "d")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	files := map[string][]byte{sqlitedb.DatabaseFileName: databaseContents, sqlitedb.HighWaterFileName: nil,
		sqlitedb.ReserveFileName: nil}
	if hasStartupCheckFile {
		files[sqlitedb.StartupCheckFileName] = nil
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(t.Context(), Options{Dir: dir, RankOrder: defaultJobOrder})
	if err != nil {
		return "refused"
	}
	defer s.Close()
	s.freeDiskBytes = func() (int64, error) { return 0, nil }
	page, err := s.ListJobs(t.Context(), store.JobFilter{Limit: store.MaxPageRows})
	if err != nil && !hasStartupCheckFile {
		return "unreadable"
	}
	if err != nil || len(page.Jobs) != jobCount {
		t.Errorf("hasErrorMarker %v: got %d jobs and error %v, want %d or a refusal", hasStartupCheckFile, len(page.Jobs),
			err, jobCount)
	}
	return "whole"
}

// A database that has lost the last assigned numbers is rejected, so that numbers are not assigned twice.
func TestOpenRefusesLostSequenceNumbers(t *testing.T) {
	for _, loss := range []string{`UPDATE meta SET next_seq = 0`, `UPDATE meta SET next_event = -1`, `DELETE FROM meta`} {
		dir := t.TempDir()
		openStore(t, dir).Close()
		execOnClosedDatabase(t, dir, loss)
		if s, err := Open(t.Context(), Options{Dir: dir, RankOrder: defaultJobOrder}); err == nil ||
			!strings.Contains(err.Error(), "is damaged") {
			t.Errorf("%s: got %v, want that it is damaged", loss, err)
			if err == nil {
				s.Close()
			}
		}
	}
}

// awaitStoreFailure waits until a store has failed.
func awaitStoreFailure(t *testing.T, s *Store) {
	t.Helper()
	select {
	case <-s.StoreFailed():
	case <-time.After(20 * time.Second):
		t.Fatal("the store has not failed")
	}
	if _, err := os.Stat(filepath.Join(s.stateDir, sqlitedb.StartupCheckFileName)); err != nil {
		t.Errorf("the next start checks nothing: %v", err)
	}
}

// If a read finds a damaged page or gets an I/O error, the store stops.
func TestReadOfDamagedPageStopsStore(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	enqueueThousands(t, s, 2000, func(*queue.Job) {})
	if err := s.writerConn.Exec(`PRAGMA wal_checkpoint(TRUNCATE)`); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, sqlitedb.DatabaseFileName), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	for page := int64(4); page < 140; page++ {
		if _, err := f.WriteAt(make([]byte, sqlitedb.PageSize), page*sqlitedb.PageSize); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ListJobs(t.Context(), store.JobFilter{Limit: 1000}); !errors.Is(err, queue.ErrUnavailable) ||
		!mentionsLogAndDoctor(err) {
		t.Errorf("the reader got %v", err)
	}
	awaitStoreFailure(t, s)
	if err := s.Err(); !mentionsLogAndDoctor(err) {
		t.Errorf("a writer would get %v", err)
	}
}

// mentionsLogAndDoctor reports whether an error names both sources of information about a damaged database: the log and
// "queuectl doctor".
func mentionsLogAndDoctor(err error) bool {
	return err != nil && strings.Contains(err.Error(), "log") && strings.Contains(err.Error(), "queuectl doctor")
}

// The check at startup reports damage in one line, because some programs show only the last line of the log.
func TestDamageIsReportedInOneLine(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	enqueueThousands(t, s, 2000, func(*queue.Job) {})
	if err := errors.Join(s.Close(), os.WriteFile(filepath.Join(dir, sqlitedb.StartupCheckFileName), nil,
		0o600)); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, sqlitedb.DatabaseFileName), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(make([]byte, sqlitedb.PageSize), 120*sqlitedb.PageSize)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), Options{Dir: dir, RankOrder: defaultJobOrder})
	if err == nil || strings.Contains(err.Error(), "\n") ||
		!strings.Contains(err.Error(), "is damaged (*** in database main *** ") ||
		!strings.Contains(err.Error(), "queuectl doctor --verify") {
		t.Errorf("got %v", err)
	}
}

// Other programs may shrink the files with SQLite while the service runs: a checkpoint empties the WAL, and a
// VACUUM shrinks the database. The store does not report this as damage.
func TestCheckpointByOtherProgramIsNotDamage(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	enqueueThousands(t, s, 3000, func(j *queue.Job) { j.Command = strings.Repeat("x", 500) })
	for seq := range int64(2900) {
		if err := s.ChangeJob(t.Context(), seq+1, store.JobChange{Verb: queue.VerbRemove}); err != nil {
			t.Fatal(err)
		}
	}
	for _, sql := range []string{`PRAGMA wal_checkpoint(TRUNCATE)`, `PRAGMA busy_timeout = 5000;VACUUM`,
		`PRAGMA wal_checkpoint(TRUNCATE)`, `PRAGMA wal_checkpoint(RESTART)`} {
		before := s.lastFileSizes
		said, stop := startSQLProgram(t, filepath.Join(dir, sqlitedb.DatabaseFileName), sql)
		stop()
		if said != "<nil>" {
			t.Fatalf("%s: %s", sql, said)
		}
		enqueueJobs(t, s, 1)
		if s.lastFileSizes.walBytes >= before.walBytes && s.lastFileSizes.databaseBytes >= before.databaseBytes &&
			strings.Contains(sql, "TRUNCATE") {
			t.Errorf("%s: the files did not shrink: %+v, then %+v", sql, before, s.lastFileSizes)
		}
	}
	if page, err := s.ListJobs(t.Context(), store.JobFilter{Limit: 1000}); err != nil || len(page.Jobs) != 104 {
		t.Errorf("%d jobs, %v", len(page.Jobs), err)
	}
	expectNoFaults(t, s, "afterwards")
}

// Transactions that a process committed before it was killed are there when the database is opened again. The last
// transaction of the process, which was not committed, is not there.
func TestCommitsSurviveKilledProcess(t *testing.T) {
	dir := createDatabase(t, 1)
	path := filepath.Join(dir, sqlitedb.DatabaseFileName)
	said, die := startSQLProgram(t, path,
		`UPDATE jobs SET error = 'committed';BEGIN IMMEDIATE;UPDATE jobs SET error = 'not'`)
	die()
	if info, err := os.Stat(path + "-wal"); said != "<nil>" || err != nil || info.Size() == 0 {
		t.Fatalf("the other program returned %s and left the WAL %v, %v", said, info, err)
	}
	s := openStore(t, dir)
	if page, err := s.ListJobs(t.Context(), store.JobFilter{Limit: 5}); err != nil || len(page.Jobs) != 1 ||
		page.Jobs[0].Error != "committed" {
		t.Errorf("got %+v, %v", page.Jobs, err)
	}
	enqueueJobs(t, s, 1)
}
