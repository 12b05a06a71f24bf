package sql

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Names of files in the state directory, and the time limit of a read.
const (
	databaseName = "queuectl.db"
	// highWaterName shows that the state directory has held a database, and its counters; see highWaterFile.
	highWaterName = "initialized"
	// checkName shows that an I/O error occurred: the next start checks the database.
	checkName   = "check"
	reserve     = "reserve" // disk space that is freed when the disk is full; see releaseReserve
	readTimeout = 2 * time.Second
)

// Store is a store.Store on an SQLite file. Open opens a Store.
type Store struct {
	*engine
	dir       string
	freeSpace func() (int64, error)
	conn      *liteConn // writer's connection
	readPath  string    // path by which readers open the database
	readFlags int32     // SQLite's flags with which readers open the database

	files [2]os.FileInfo // database and WAL, as they were when opened
	// statesAtOpen describes the files as they were when they were opened in read-only mode. It is zero in
	// any other mode.
	statesAtOpen fileStates
	lastSizes    fileSizes  // sizes of the files after the last commit; used by the writer only
	space        spaceCheck // used by the writer only
	wal          walCheck   // used by the writer only

	compaction compaction   // used by the writer only
	freeInside atomic.Int64 // bytes of free pages in the database, when last counted
	// noReserve is the error for new jobs while the reserve file is missing. It is nil if the reserve exists.
	noReserve atomic.Pointer[error]
	capacity  atomic.Pointer[capacity]
	// needsSpace receives a value when new jobs are refused for lack of space, or when rows were removed.
	needsSpace chan struct{}

	walStuck  atomic.Pointer[string] // why the WAL cannot be emptied; nil if it can
	backup    uintptr                // SQLite's handle of a running backup, 0 if none; used by the writer only
	highWater highWaterFile          // used by the writer only
}

// Options are the parameters of Open and OpenServer.
type Options struct {
	Dir string // the state directory, which must exist
	// Order says how ranks are computed. OrderOf, if set, derives it from the stored settings instead.
	Order   queue.Order
	OrderOf func([]store.Setting) (queue.Order, error)
	Log     *slog.Logger // nil discards the log
	Node    NodeConfig   // the node; only for a server
}

// Open opens the database in a directory and updates its schema. It creates a database only if none has
// existed there before. The caller ensures that no other process uses the directory. If ctx ends, Open
// returns an error. The next call continues the work, such as moving a committed large batch into the queue.
func Open(ctx context.Context, o Options) (*Store, error) {
	path := filepath.Join(o.Dir, databaseName)
	system, err := fileSystemOf(o.Dir)
	if err == nil {
		err = system.refuse(o.Dir)
	}
	if err == nil {
		err = checkDir(o.Dir, path)
	}
	if err == nil {
		err = checkFileLimit(path)
	}
	if err != nil {
		return nil, err
	}
	if err := checkVersion(sqlite3.SQLITE_VERSION_NUMBER); err != nil {
		return nil, err
	}
	s := newStore(o)
	if failpoint.On("smallwal") {
		s.wal = walCheck{keep: 1 << 20, alarm: 4 << 20}
	}
	if err := s.open(path); err != nil {
		if e := sqliteErrorIn(err); e != nil && (e.code&0xff == sqlite3.SQLITE_NOTADB ||
			e.code&0xff == sqlite3.SQLITE_CORRUPT) {
			return nil, fmt.Errorf("%w; "+damageDetails, explain(path, err))
		}
		return nil, explain(path, err)
	}
	if err := s.begin(ctx, o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// newStore returns a store that is not open yet.
func newStore(o Options) *Store {
	s := &Store{
		dir:       o.Dir,
		wal:       walCheck{keep: walKeep, alarm: walAlarm},
		freeSpace: func() (int64, error) { return freeBytes(o.Dir) },

		needsSpace: make(chan struct{}, 1),
	}
	s.engine = newEngine(s, s, o.Order, o.Log)
	return s
}

func (s *Store) open(path string) (err error) {
	if s.conn, err = openWriter(path); err != nil {
		return err
	}
	s.db = s.conn
	defer func() {
		if err != nil {
			s.conn.close()
			s.highWater.close()
		}
	}()
	if err = s.checkAfterIOError(); err != nil {
		return err
	}
	if err = checkTables(s.conn); err != nil {
		return err
	}
	if err = checkHighWater(s.conn, s.dir); err != nil {
		return err
	}
	if err = migrate(s.conn, migrations); err != nil {
		return err
	}
	if s.highWater, err = openHighWater(s.dir); err != nil {
		return err
	}
	sweepCopies(s.dir)
	sweepRestoring(filepath.Join(s.dir, preparedName))
	if err = s.load(); err != nil {
		return err
	}
	if err = s.loadFile(FileID(path)); err != nil {
		return err
	}
	if s.files, err = statFiles(path); err != nil {
		return err
	}
	s.lastSizes = sizesOf(s.files)
	s.maintainReserve()
	s.readPath, s.readFlags = path, readWrite
	s.readers = newReaders(s.reader)
	return nil
}

const busyTimeout = `busy_timeout = 5000` // ms that the writer waits for other programs' locks

// openWriter opens a database for writing. It also creates every database file of a queue: an empty file gets
// the layout that compaction needs. This layout can only be chosen before the first page is written.
func openWriter(path string) (*liteConn, error) {
	pragmas := writerPragmas()
	if info, err := os.Stat(path); err == nil && info.Size() == 0 {
		pragmas = append([]string{`auto_vacuum = INCREMENTAL`}, pragmas...)
	}
	return openConn(path, pragmas...)
}

// writerPragmas returns the pragmas of the writer's connection. Its cache is small, because a commit that has
// moved pages of a tree walks through the whole cache.
// See docs/decisions/0007.
func writerPragmas() []string {
	synchronous := "FULL"
	switch {
	case failpoint.On("nosync"):
		synchronous = "OFF"
	case failpoint.On("normalsync"):
		synchronous = "NORMAL"
	}
	return []string{
		busyTimeout, `journal_mode = wal`, `synchronous = ` + synchronous, `wal_autocheckpoint = 1000`,
		`journal_size_limit = ` + strconv.Itoa(walKeep), `cache_size = -2048`, `temp_store = memory`, `foreign_keys = 1`,
		`trusted_schema = 0`,
	}
}

// checkDir refuses to create a database where one was lost, and rejects files that other users can access.
// It creates an empty file if there was no database before.
func checkDir(dir, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if _, err := os.Stat(filepath.Join(dir, highWaterName)); err == nil {
			return fmt.Errorf("the database %s is missing, but existed before; put the file back, or remove %s to start "+
				"with an empty queue", path, filepath.Join(dir, highWaterName))
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return fmt.Errorf("cannot create the database: %w", err)
		}
		return f.Close() // the file is new, so closing it releases no lock of SQLite
	case err != nil:
		return fmt.Errorf("cannot open the database: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("the database %s is not a regular file", path)
	case info.Size() == 0:
		if _, err := os.Stat(filepath.Join(dir, highWaterName)); err == nil {
			return fmt.Errorf("the database %s is empty, but contained jobs before; put a copy back, or remove %s to start "+
				"with an empty queue", path, filepath.Join(dir, highWaterName))
		}
	}
	if err := checkPrivate(path, info, 0o077); err != nil {
		return fmt.Errorf("the database %w", err)
	}
	if err := checkWritable(path, info); err != nil {
		return fmt.Errorf("the database %w", err)
	}
	return nil
}

// damageDetails says how to find out what is damaged.
const damageDetails = "to see what is damaged: queuectl doctor --verify"

// sqliteErrorIn returns the error that SQLite reported. For damage that the engine found, it returns an error
// with SQLite's code for corruption. It returns nil for any other error.
func sqliteErrorIn(err error) *sqliteError {
	if damaged, harmed := errors.AsType[damage](err); harmed {
		return &sqliteError{code: sqlite3.SQLITE_CORRUPT, text: string(damaged)}
	}
	e, _ := errors.AsType[*sqliteError](err)
	return e
}

// explain adds to an error of opening the database what the user can do about it.
func explain(path string, err error) error {
	e := sqliteErrorIn(err)
	if e == nil {
		return err
	}
	switch e.code {
	// SQLite hides the system's error code in these cases.
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_IN_PAGE:
		if free, failed := freeBytes(filepath.Dir(path)); failed == nil && free < sharedBytes {
			return noSpaceFor(path, err)
		}
	}
	switch e.code & 0xff {
	case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
		return fmt.Errorf("the database %s is damaged (%w) and was not changed; copy it, then restore a backup with: "+
			"queuectl restore FILE", path, err)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN:
		return fmt.Errorf("the database %s cannot be written (%w); give the service's account write access to the file "+
			"and its directory", path, err)
	case sqlite3.SQLITE_FULL:
		return noSpaceFor(path, err)
	case sqlite3.SQLITE_BUSY:
		return fmt.Errorf("the database %s is locked by another program; end that program and start again (%w)", path, err)
	}
	return fmt.Errorf("cannot open %s: %w", path, err)
}

// sharedBytes is the minimum size in bytes of the files that SQLite creates next to the database.
const sharedBytes = 64 << 10

// noSpaceFor returns the error for a database that cannot be opened because the disk is full.
func noSpaceFor(path string, err error) error {
	return queue.Errorf(queue.CodeNoSpace, "no disk space for the database %s; free some space (%v)", path, err)
}

// checkAfterIOError runs SQLite's quick check if the last service met an I/O error.
func (s *Store) checkAfterIOError() error {
	marker := filepath.Join(s.dir, checkName)
	if _, err := os.Stat(marker); err != nil {
		return nil
	}
	verdict := ""
	err := s.db.query(func(r row) (bool, error) {
		verdict = r.text(0)
		return false, nil
	}, `PRAGMA quick_check(1)`)
	if err != nil {
		return err
	}
	if verdict != "ok" {
		verdict = strings.ReplaceAll(verdict, "\n", " ")
		return fmt.Errorf("the database in %s is damaged (%s) and was not changed; copy it, then restore a backup with: "+
			"queuectl restore FILE; "+damageDetails, s.dir, verdict)
	}
	return os.Remove(marker)
}

// reader implements backend.
func (s *Store) reader() (readConn, error) {
	c, err := openAs(s.readPath, s.readFlags, readerPragmas()...)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// beforeCommit implements backend.
func (s *Store) beforeCommit() error {
	wal, err := s.checkFiles()
	if err == nil {
		s.checkpointWAL(wal)
	}
	return err
}

// beginTx implements backend. No other process changes the database, so there is nothing to update.
func (s *Store) beginTx(*tx) error { return nil }

// readReserved implements backend.
func (s *Store) readReserved(*queryBatch, func(row) (bool, error)) {}

// writeReserved implements backend.
func (s *Store) writeReserved(t *tx) (inMeta string, changed bool, err error) {
	return t.reservations(), true, nil
}

// blameUncertain implements backend. SQLite reports each error with the statement that caused it.
func (s *Store) blameUncertain(error) bool { return false }

// onCommit implements backend.
func (s *Store) onCommit(changed bool) {
	if m := &s.mem; changed {
		s.highWater.write(highWater{m.commits, m.nextSeq, m.nextEvent})
	}
	if files, err := statFiles(filepath.Join(s.dir, databaseName)); err == nil { // the next commit reports an error
		s.lastSizes = sizesOf(files)
	}
}

// refusal implements backend.
func (s *Store) refusal(k kind, err error) error {
	if k == full {
		return queue.Errorf(queue.CodeNoSpace, "the disk of %s is full; free some space and try again", s.dir)
	}
	return queue.Errorf(queue.CodeUnavailable, "another program has locked the database %s; end that "+
		"program and try again", filepath.Join(s.dir, databaseName))
}

// onFailure implements backend.
func (s *Store) onFailure() {
	s.conn.keepWAL()
	// If this fails, the next start finds the damage itself.
	os.WriteFile(filepath.Join(s.dir, checkName), nil, 0o600)
}

// bytes implements backend.
func (s *Store) bytes() int64 {
	if s.statesAtOpen != (fileStates{}) {
		return s.statesAtOpen[0].size + max(0, s.statesAtOpen[1].size)
	}
	if files, err := statFiles(filepath.Join(s.dir, databaseName)); err == nil {
		return files[0].Size() + files[1].Size()
	}
	return 0
}

// readError implements backend. An error of the file or the disk stops the store for good, as in a write.
func (s *Store) readError(err error) error {
	e := sqliteErrorIn(err)
	if e == nil {
		return err
	}
	switch e.code & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR:
		if s.statesAtOpen != (fileStates{}) {
			return explain(filepath.Join(s.dir, databaseName), err)
		}
		s.failFromRead(err)
		return queue.Errorf(queue.CodeUnavailable, "the database is damaged or cannot be read (%v), so the service ends; "+
			"see the service's log, and check the database with: queuectl doctor --verify", err)
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM:
		return queue.Errorf(queue.CodeUnavailable, "the database cannot be read now (%v); try again later", err)
	}
	return err
}

// checkReadable implements backend.
func (s *Store) checkReadable() error { return s.checkUnchanged() }

// close implements backend.
func (s *Store) close() error {
	s.endBackup()
	return errors.Join(s.conn.close(), s.highWater.close())
}

var (
	_ store.Store      = (*Store)(nil)
	_ store.Maintainer = (*Store)(nil)
	_ backend          = (*Store)(nil)
)
