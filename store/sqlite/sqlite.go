// Package sqlite stores the jobs of a queue in an SQLite file. It detects other programs' changes to the file,
// and keeps the queue usable when the disk is full.
//
// Start with Open. Package store/engine contains the code that does not depend on SQLite.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/integrity"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// Store is a store.Store on an SQLite file. Open opens a Store. The writer is the goroutine that commits
// changes.
type Store struct {
	*engine.Engine
	stateDir           string
	freeDiskBytes      func() (int64, error) // returns the free bytes on the disk; replaced in tests
	writerConn         *sqlitedb.Conn        // the connection of the writer
	readerDatabasePath string                // the path with which readers open the database
	readerOpenFlags    int32                 // the SQLite flags with which readers open the database

	filesWhenOpened [2]os.FileInfo // database and WAL at the time when they were opened
	// readOnlyFileStates describes the files when they were opened in read-only mode. It is zero if
	// the store is not read-only.
	readOnlyFileStates databaseFileStates
	lastFileSizes      fileSizes        // sizes of the files after the last commit; used by the writer only
	lastSpaceCheck     spaceCheckResult // used by the writer only
	walState           walState         // used by the writer only

	compaction    compactionState // used by the writer only
	freePageBytes atomic.Int64    // bytes of free pages in the database, when they were last counted
	// missingReserveError is why new jobs are refused while the reserve file is missing. It is nil if the file exists.
	missingReserveError atomic.Pointer[error]
	diskCapacity        atomic.Pointer[diskCapacity] // last measured size of the disk; nil before the first measurement
	// compactionWakeups receives a value when new jobs are refused for lack of space or when rows were removed. It wakes
	// CompactFiles.
	compactionWakeups chan struct{}

	walStuckReason atomic.Pointer[string] // why the WAL cannot be emptied; nil if it can
	backupHandle   uintptr                // SQLite's handle of a running backup, 0 if none; used by the writer only
	highWaterFile  sqlitedb.HighWaterFile // used by the writer only
}

// engineBackend implements the interfaces Backend and DiskSpace for the engine of a Store.
type engineBackend struct{ *Store }

// Options are the parameters of Open and of OpenReadOnly.
type Options struct {
	Dir string // the state directory, which must exist
	// RankOrder says how the ranks of jobs are computed. If RankOrderFromSettings is not nil, it computes the order from
	// the stored settings, and RankOrder is not used.
	RankOrder             queue.RankPolicy
	RankOrderFromSettings func([]store.Setting) (queue.RankPolicy, error)
	Log                   *slog.Logger // nil discards the log
}

// Open opens the database in a directory and updates its schema. It creates a database only if none has existed
// there before. The caller ensures that no other process uses the directory. If ctx ends, Open returns an
// error. The next call of Open then continues unfinished work, such as moving a committed batch into the queue.
func Open(ctx context.Context, o Options) (*Store, error) {
	path := filepath.Join(o.Dir, sqlitedb.DatabaseFileName)
	system, err := sqlitedb.FileSystemOf(o.Dir)
	if err == nil {
		err = system.CheckSupported(o.Dir)
	}
	if err == nil {
		err = sqlitedb.CheckStateDir(o.Dir, path)
	}
	if err == nil {
		err = checkFileSizeLimit(path)
	}
	if err != nil {
		return nil, err
	}
	s := newStore(o)
	if failpoint.IsEnabled("smallwal") {
		s.walState = walState{waitForReadersAboveBytes: 1 << 20, warnAboveBytes: 4 << 20}
	}
	if err := s.openFiles(path); err != nil {
		if e := sqlitedb.SQLiteErrorIn(err); e != nil && (e.Code&0xff == sqlite3.SQLITE_NOTADB ||
			e.Code&0xff == sqlite3.SQLITE_CORRUPT) {
			return nil, fmt.Errorf("%w; "+sqlitedb.DamageAdvice, sqlitedb.ExplainOpenError(path, err))
		}
		return nil, sqlitedb.ExplainOpenError(path, err)
	}
	s.AllowWrites()
	if err := s.Start(ctx, o.RankOrder, o.RankOrderFromSettings); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// newStore returns a store whose files are not open yet.
func newStore(o Options) *Store {
	s := &Store{
		stateDir: o.Dir,
		walState: walState{waitForReadersAboveBytes: sqlitedb.WALSizeLimitBytes, warnAboveBytes: walWarningBytes},
		freeDiskBytes: func() (int64, error) {
			disk, err := sqlitedb.DiskSpaceOf(o.Dir)
			return disk.FreeBytes, err
		},
		compactionWakeups: make(chan struct{}, 1),
	}
	b := engineBackend{s}
	s.Engine = engine.New(engine.Config{Backend: b, DiskSpace: b, RankOrder: o.RankOrder, Log: o.Log})
	return s
}

// openFiles opens the files, updates the schema and loads the data that the writer keeps in memory.
func (s *Store) openFiles(path string) (err error) {
	if s.writerConn, err = sqlitedb.OpenWriter(path); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.writerConn.Close()
			s.highWaterFile.Close()
		}
	}()
	if err = s.checkAfterIOError(); err != nil {
		return err
	}
	if err = sqlitedb.CheckDatabaseUsable(s.writerConn, s.stateDir); err != nil {
		return err
	}
	if err = sqlitedb.Migrate(s.writerConn, database.SchemaMigrations); err != nil {
		return err
	}
	if s.highWaterFile, err = sqlitedb.OpenHighWaterFile(s.stateDir); err != nil {
		return err
	}
	deleteUnfinishedDatabaseCopies(s.stateDir)
	integrity.DeleteUnfinishedRestore(filepath.Join(s.stateDir, integrity.PreparedDatabaseFileName))
	if err = s.LoadCache(s.writerConn, sqlitedb.FileID(path)); err != nil {
		return err
	}
	if s.filesWhenOpened, err = statDatabaseFiles(path); err != nil {
		return err
	}
	s.lastFileSizes = fileSizesOf(s.filesWhenOpened)
	s.createMissingReserveFile()
	s.readerDatabasePath, s.readerOpenFlags = path, sqlitedb.ReadWriteFlags
	return nil
}

// checkAfterIOError runs SQLite's quick check if a marker file shows that the last service had an I/O error.
func (s *Store) checkAfterIOError() error {
	marker := filepath.Join(s.stateDir, sqlitedb.StartupCheckFileName)
	if _, err := os.Stat(marker); err != nil {
		return nil
	}
	verdict, err := database.QueryText(s.writerConn, `PRAGMA quick_check(1)`)
	if err != nil {
		return err
	}
	if verdict != "ok" {
		verdict = strings.ReplaceAll(verdict, "\n", " ")
		return fmt.Errorf("the database in %s is damaged (%s) and was not changed; copy it, then restore a backup with: "+
			"queuectl restore FILE; "+sqlitedb.DamageAdvice, s.stateDir, verdict)
	}
	return os.Remove(marker)
}

// OpenReader implements reads.ReadDatabase. It opens a connection for reads.
func (b engineBackend) OpenReader() (database.ReadConn, error) {
	c, err := sqlitedb.OpenWithFlags(b.readerDatabasePath, b.readerOpenFlags, sqlitedb.ReaderPragmas()...)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// BeforeCommitGroup implements engine.Backend. It checks that the files are unchanged, and keeps the write-ahead log
// from growing too large.
func (b engineBackend) BeforeCommitGroup() error {
	wal, err := b.checkFilesIntact()
	if err == nil {
		b.checkpointWALIfLarge(wal)
	}
	return err
}

// BeginTx implements engine.Backend. It does nothing, because no other process changes the database.
func (b engineBackend) BeginTx(*engine.Tx) error { return nil }

// ReadReservations implements engine.Backend. It does nothing, because the engine itself reads all
// reservations (leases of jobs that have not started) from the table meta.
func (b engineBackend) AddReservationQuery(*database.QueryBatch, func(database.Row)) {}

// WriteReservations implements engine.Backend. It returns all reservations (leases of jobs that have not
// started) as text for the table meta.
func (b engineBackend) WriteReservations(t *engine.Tx) (metaReservationsText string, metaReservationsChanged bool,
	err error) {
	return t.EncodedReservations(), true, nil
}

// MayStemFromEarlierStatement implements engine.Backend. It returns false, because SQLite reports each error for
// the statement that caused it.
func (b engineBackend) MayStemFromEarlierStatement(error) bool { return false }

// AfterCommit implements engine.Backend. It records the new sizes of the files, and writes the high-water mark,
// which shows how many changes were committed.
func (b engineBackend) AfterCommit(metaRowChanged bool) {
	if metaRowChanged {
		b.highWaterFile.Write(sqlitedb.HighWaterMark(b.DatabaseCounters()))
	}
	b.recordFileSizes()
}

// recordFileSizes stores the current sizes of the files in lastFileSizes. The writer calls it after a change.
func (s *Store) recordFileSizes() {
	// If this fails, the next commit reports the error.
	if files, err := statDatabaseFiles(filepath.Join(s.stateDir, sqlitedb.DatabaseFileName)); err == nil {
		s.lastFileSizes = fileSizesOf(files)
	}
}

// RefusedRequestError implements engine.Backend. It returns the error for requests that fail because the disk is full
// or the database is busy.
func (b engineBackend) RefusedRequestError(kind database.ErrorKind, err error) error {
	if kind == database.DiskFull {
		return queue.Errorf(queue.CodeNoSpace, "the disk of %s is full; free some space and try again", b.stateDir)
	}
	return queue.Errorf(queue.CodeUnavailable, "another program has locked the database %s; end that "+
		"program and try again", filepath.Join(b.stateDir, sqlitedb.DatabaseFileName))
}

// OnEngineFailure implements engine.Backend. It keeps the write-ahead log, and makes the next start check the database.
func (b engineBackend) OnEngineFailure() {
	b.writerConn.KeepWALOnClose()
	// If writing this marker fails, the next start does not check the database in advance,
	// but still detects damage.
	os.WriteFile(filepath.Join(b.stateDir, sqlitedb.StartupCheckFileName), nil, 0o600)
}

// DatabaseBytes implements engine.DiskSpace. It returns the size of the database file and its write-ahead log.
func (b engineBackend) DatabaseBytes() int64 {
	states := readDatabaseFileStates(filepath.Join(b.stateDir, sqlitedb.DatabaseFileName))
	return max(0, states[0].sizeBytes) + max(0, states[1].sizeBytes)
}

// ConvertReadError implements reads.ReadDatabase. An I/O error or a damaged file stops the store for good, as it does
// during a write.
func (b engineBackend) ConvertReadError(err error) error {
	e := sqlitedb.SQLiteErrorIn(err)
	if e == nil {
		return err
	}
	switch e.Code & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR:
		if b.readOnlyFileStates != (databaseFileStates{}) {
			return sqlitedb.ExplainOpenError(filepath.Join(b.stateDir, sqlitedb.DatabaseFileName), err)
		}
		b.FailAfterReadError(err)
		return queue.Errorf(queue.CodeUnavailable, "the database is damaged or cannot be read (%v), so the service ends; "+
			"see the service's log, and check the database with: queuectl doctor --verify", err)
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM:
		return queue.Errorf(queue.CodeUnavailable, "the database cannot be read now (%v); try again later", err)
	}
	return err
}

// CheckReadable implements reads.ReadDatabase. For a read-only store, it returns an error if a service has changed the
// files since they were opened.
func (b engineBackend) CheckReadable() error {
	if b.readOnlyFileStates == (databaseFileStates{}) ||
		b.readOnlyFileStates == readDatabaseFileStates(filepath.Join(b.stateDir, sqlitedb.DatabaseFileName)) {
		return nil
	}
	return queue.Errorf(queue.CodeUnavailable, "a service started while this command read the files in %s; "+
		"run the command again", b.stateDir)
}

// Close implements engine.Backend. It ends a running backup and closes the files.
func (b engineBackend) Close() error {
	b.finishSQLiteBackup()
	return errors.Join(b.writerConn.Close(), b.highWaterFile.Close())
}

var (
	_ store.Store      = (*Store)(nil)
	_ store.Maintainer = (*Store)(nil)
	_ engine.Backend   = engineBackend{}
	_ engine.DiskSpace = engineBackend{}
)
