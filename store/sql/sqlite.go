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

// Names of files in the state folder.
const (
	fileName  = "queuectl.db"
	markName  = "initialized" // a database has existed here, and came so far: see mark
	doubtName = "check"       // an I/O error was met: check before use
	reserve   = "reserve"     // space for a full disk; see relieve
	longRead  = 2 * time.Second
)

// Store is a store.Store over SQLite. Make it with Open.
type Store struct {
	*engine
	dir       string
	free      func() (int64, error)
	lite      *liteConn // the writer's
	readPath  string    // by which readers open the database, and SQLite's flags
	readFlags int32

	files  [2]os.FileInfo // database and WAL, as opened
	frozen files          // as they were when they were opened to be read only; else zero
	seen   fileSizes      // theirs after the last commit; the writer's
	space  spaceCheck     // the writer's
	wal    walCheck       // the writer's

	compaction compaction            // the writer's
	freeInside atomic.Int64          // bytes of free pages in the database, as last counted
	noReserve  atomic.Pointer[error] // why new jobs are refused while the reserve is not there; nil if it is
	capacity   atomic.Pointer[capacity]
	needsSpace chan struct{} // receives a value when new jobs are refused for want of space, or rows were removed

	starved atomic.Pointer[string] // why the WAL cannot be emptied
	backup  uintptr                // the writer's: SQLite's part of it, 0 if there is none
	mark    mark                   // the writer's
}

// Options are what Open needs to know.
type Options struct {
	Dir string // the state folder, which exists
	// Order is how ranks are made; OrderOf, if set, says it by the stored settings.
	Order   queue.Order
	OrderOf func([]store.Setting) (queue.Order, error)
	Log     *slog.Logger // nil is none
	Member  Member       // of a server
}

// Open opens the database in a folder and brings its schema up to date. It
// makes a new one only where none has ever been. The caller makes sure that no
// other process uses the folder. It gives up when ctx ends; the next one goes on, as with a
// large batch that was committed and is being taken in.
func Open(ctx context.Context, o Options) (*Store, error) {
	path := filepath.Join(o.Dir, fileName)
	system, err := fileSystemOf(o.Dir)
	if err == nil {
		err = system.refuse(o.Dir)
	}
	if err == nil {
		err = checkFolder(o.Dir, path)
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
		if e := saidBySQLite(err); e != nil && (e.code&0xff == sqlite3.SQLITE_NOTADB || e.code&0xff == sqlite3.SQLITE_CORRUPT) {
			return nil, fmt.Errorf("%w; "+damageDetails, explain(path, err))
		}
		return nil, explain(path, err)
	}
	if err := s.begin(ctx, o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// newStore is a store that is not open yet.
func newStore(o Options) *Store {
	s := &Store{
		dir:  o.Dir,
		wal:  walCheck{keep: walKeep, alarm: walAlarm},
		free: func() (int64, error) { return freeBytes(o.Dir) },

		needsSpace: make(chan struct{}, 1),
	}
	s.engine = newEngine(s, o.Order, o.Log)
	return s
}

func (s *Store) open(path string) (err error) {
	if s.lite, err = openWriter(path); err != nil {
		return err
	}
	s.db = s.lite
	defer func() {
		if err != nil {
			s.lite.close()
			s.mark.close()
		}
	}()
	if err = s.checkDoubt(); err != nil {
		return err
	}
	if err = checkTables(s.lite); err != nil {
		return err
	}
	if err = checkMark(s.lite, s.dir); err != nil {
		return err
	}
	if err = migrate(s.lite, migrations); err != nil {
		return err
	}
	if s.mark, err = openMark(s.dir); err != nil {
		return err
	}
	sweepCopies(s.dir)
	sweepRestoring(filepath.Join(s.dir, restoring))
	if err = s.load(); err != nil {
		return err
	}
	if err = s.loadFile(FileID(path)); err != nil {
		return err
	}
	if s.files, err = statFiles(path); err != nil {
		return err
	}
	s.seen = sizesOf(s.files)
	s.keepRoom()
	s.readPath, s.readFlags = path, readWrite
	s.read = newReaders(s.reader)
	return nil
}

const busyTimeout = `busy_timeout = 5000` // ms, the writer's

// openWriter opens a database to write. Every file of a queue is created by it: an empty file gets the layout that
// compaction needs, which can only be chosen before the first page is written.
func openWriter(path string) (*liteConn, error) {
	pragmas := writerPragmas()
	if info, err := os.Stat(path); err == nil && info.Size() == 0 {
		pragmas = append([]string{`auto_vacuum = INCREMENTAL`}, pragmas...)
	}
	return openConn(path, pragmas...)
}

// writerPragmas are those of the connection that writes. Its cache is small: a
// commit that has moved pages of a tree walks through all of it.
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
		`journal_size_limit = ` + strconv.Itoa(walKeep), `cache_size = -2048`, `temp_store = memory`, `foreign_keys = 1`, `trusted_schema = 0`,
	}
}

// checkFolder refuses to make a database where one has been lost, and files
// that are not ours to trust.
func checkFolder(dir, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if _, err := os.Stat(filepath.Join(dir, markName)); err == nil {
			return fmt.Errorf("the database %s is missing, but existed before; put the file back, or remove %s to start with an empty queue", path, filepath.Join(dir, markName))
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return fmt.Errorf("create the database: %w", err)
		}
		return f.Close() // nobody has locked it yet
	case err != nil:
		return fmt.Errorf("cannot open the database: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("the database %s is not a regular file", path)
	case info.Size() == 0:
		if _, err := os.Stat(filepath.Join(dir, markName)); err == nil {
			return fmt.Errorf("the database %s is empty, but contained jobs before; put a copy back, or remove %s to start with an empty queue", path, filepath.Join(dir, markName))
		}
	}
	if err := checkPrivate(path, info, 0o077); err != nil {
		return fmt.Errorf("the database %w", err)
	}
	if !canWrite(path, info) {
		return fmt.Errorf("the database %s cannot be written; allow the account that the service runs as to write to it", path)
	}
	return nil
}

// damageDetails says how to find out what is damaged.
const damageDetails = "to see what is damaged: queuectl doctor --verify"

// saidBySQLite is what SQLite said, or would of what the engine found damaged; nil if it is neither.
func saidBySQLite(err error) *sqliteError {
	if harm, harmed := errors.AsType[damage](err); harmed {
		return &sqliteError{code: sqlite3.SQLITE_CORRUPT, text: string(harm)}
	}
	e, _ := errors.AsType[*sqliteError](err)
	return e
}

// explain adds to an error of opening what a person can do.
func explain(path string, err error) error {
	e := saidBySQLite(err)
	if e == nil {
		return err
	}
	switch e.code {
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_IN_PAGE: // SQLite does not keep the system's word for it
		if free, failed := freeBytes(filepath.Dir(path)); failed == nil && free < sharedBytes {
			return noSpaceFor(path, err)
		}
	}
	switch e.code & 0xff {
	case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
		return fmt.Errorf("the database %s is damaged (%w) and was not changed; copy it, then restore a backup with: queuectl restore FILE", path, err)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN:
		return fmt.Errorf("the database %s cannot be written (%w); allow the account that the service runs as to write to the file and its directory", path, err)
	case sqlite3.SQLITE_FULL:
		return noSpaceFor(path, err)
	case sqlite3.SQLITE_BUSY:
		return fmt.Errorf("the database %s is locked by another program; end that program and start again (%w)", path, err)
	}
	return fmt.Errorf("cannot open %s: %w", path, err)
}

// sharedBytes is the least that SQLite's files beside the database take.
const sharedBytes = 64 << 10

// noSpaceFor is the error of a database that cannot be opened until there is space.
func noSpaceFor(path string, err error) error {
	return queue.Errorf(queue.CodeNoSpace, "no disk space for the database %s; free some space (%v)", path, err)
}

// checkDoubt runs SQLite's quick check if the last service met an I/O error.
func (s *Store) checkDoubt() error {
	doubt := filepath.Join(s.dir, doubtName)
	if _, err := os.Stat(doubt); err != nil {
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
		return fmt.Errorf("the database in %s is damaged (%s) and was not changed; copy it, then restore a backup with: queuectl restore FILE; "+damageDetails, s.dir, verdict)
	}
	return os.Remove(doubt)
}

// reader implements host.
func (s *Store) reader() (conn, error) {
	c, err := openAs(s.readPath, s.readFlags, readerPragmas()...)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// ready implements host.
func (s *Store) ready() error {
	wal, err := s.checkFiles()
	if err == nil {
		s.checkpointWAL(wal)
	}
	return err
}

// enter implements host: nobody else changes it.
func (s *Store) enter(*tx) error { return nil }

// readReserved implements host.
func (s *Store) readReserved(*reads, func(row) (bool, error)) {}

// writeReserved implements host.
func (s *Store) writeReserved(t *tx) (inMeta string, changed bool, err error) {
	return t.reservations(), true, nil
}

// blames implements host: each statement meets its own errors.
func (s *Store) blames(error) bool { return false }

// committed implements host.
func (s *Store) committed(changed bool) {
	if m := &s.mem; changed {
		s.mark.note(reached{m.commits, m.nextSeq, m.nextEvent})
	}
	if files, err := statFiles(filepath.Join(s.dir, fileName)); err == nil { // else the next commit says so
		s.seen = sizesOf(files)
	}
}

// refusal implements host.
func (s *Store) refusal(k kind, err error) error {
	if k == full {
		return queue.Errorf(queue.CodeNoSpace, "the disk of %s is full; free some space and try again", s.dir)
	}
	return queue.Errorf(queue.CodeUnavailable, "another program has locked the database %s; end that program and try again", filepath.Join(s.dir, fileName))
}

// broke implements host.
func (s *Store) broke() {
	s.lite.keepWAL()
	os.WriteFile(filepath.Join(s.dir, doubtName), nil, 0o600) // if it cannot be written the next start finds out by itself
}

// bytes implements host.
func (s *Store) bytes() int64 {
	if s.frozen != (files{}) {
		return s.frozen[0].size + max(0, s.frozen[1].size)
	}
	if files, err := statFiles(filepath.Join(s.dir, fileName)); err == nil {
		return files[0].Size() + files[1].Size()
	}
	return 0
}

// cannotRead implements host. An error which means that the
// file or the disk has failed stops the store for good, as it does in a write.
func (s *Store) cannotRead(err error) error {
	e := saidBySQLite(err)
	if e == nil {
		return err
	}
	switch e.code & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR:
		if s.frozen != (files{}) {
			return explain(filepath.Join(s.dir, fileName), err)
		}
		s.failed(err)
		return queue.Errorf(queue.CodeUnavailable, "the database is damaged or cannot be read (%v), so the service ends; "+
			"see the service's log, and check the database with: queuectl doctor --verify", err)
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM:
		return queue.Errorf(queue.CodeUnavailable, "the database cannot be read now (%v); try again later", err)
	}
	return err
}

// readable implements host.
func (s *Store) readable() error { return s.unchanged() }

// close implements host.
func (s *Store) close() error {
	s.endBackup()
	return errors.Join(s.lite.close(), s.mark.close())
}

var (
	_ store.Store      = (*Store)(nil)
	_ store.Maintainer = (*Store)(nil)
	_ host             = (*Store)(nil)
)
