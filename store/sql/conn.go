package sql

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"modernc.org/libc"
	sqlite "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// liteConn is one connection to SQLite with its prepared statements, for one goroutine at a time. It calls
// SQLite's C API through modernc.org/sqlite/lib. The database/sql driver on top of that API copies every
// value twice and takes locks that a single goroutine does not need. Copies and locks cost a ninth of the
// service's CPU time for a short job. As in the package lib, addresses in SQLite's memory are uintptr.
// See docs/decisions/0007.
type liteConn struct {
	tls            *libc.TLS
	db             uintptr
	stmts          map[string]uintptr // by SQL text
	resultMemory   uintptr            // memory for the value that a call returns
	textMemory     uintptr            // memory for the texts and blobs of one statement
	textMemorySize int                // in bytes
	boundBytes     int64              // total size in bytes of the texts and blobs bound to statements
	row            liteRow            // the row of the running query
}

// keptTextMemory is how much memory for texts is kept between statements, in bytes.
const keptTextMemory = 64 << 10

var setLocking sync.Once

// openConn opens a database, creates it if it does not exist, and executes the pragmas.
func openConn(path string, pragmas ...string) (*liteConn, error) {
	return openAs(path, readWrite, pragmas...)
}

// readWrite are the SQLite flags that open a database and create it if it does not exist.
const readWrite = sqlite3.SQLITE_OPEN_READWRITE | sqlite3.SQLITE_OPEN_CREATE

// openAs opens a database with the given SQLite flags and executes the pragmas.
// See docs/decisions/0034.
func openAs(path string, flags int32, pragmas ...string) (_ *liteConn, err error) {
	// POSIX locks vanish when this process closes any descriptor of the file; open-file-description locks
	// do not. On systems without them, OFDLocking reports that and SQLite keeps using POSIX locks.
	setLocking.Do(func() {
		sqlite.OFDLocking(true)
		sqlite.StrictPragmas(true)
	})
	c := &liteConn{tls: libc.NewTLS(), stmts: map[string]uintptr{}}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.resultMemory = libc.Xmalloc(c.tls, 16); c.resultMemory == 0 {
		return nil, &sqliteError{code: sqlite3.SQLITE_NOMEM}
	}
	if err := c.grow(keptTextMemory); err != nil {
		return nil, err
	}
	name, err := libc.CString(path)
	if err != nil {
		return nil, err
	}
	defer libc.Xfree(c.tls, name)
	rc := sqlite3.Xsqlite3_open_v2(c.tls, name, c.resultMemory,
		flags|sqlite3.SQLITE_OPEN_NOMUTEX|sqlite3.SQLITE_OPEN_EXRESCODE, 0)
	c.db = *(*uintptr)(pointerTo(c.resultMemory))
	if rc != sqlite3.SQLITE_OK {
		return nil, c.failed(rc)
	}
	// Defensive mode disables the SQL features that can corrupt a database, so the schema of a hostile file
	// cannot use them.
	if rc := sqlite3.Xsqlite3_db_config(c.tls, c.db, sqlite3.SQLITE_DBCONFIG_DEFENSIVE,
		libc.VaList(c.resultMemory, int32(1), uintptr(0))); rc != sqlite3.SQLITE_OK {
		return nil, c.failed(rc)
	}
	for _, p := range pragmas {
		if err := c.exec(`PRAGMA ` + p); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// pointerTo converts an address in SQLite's memory, which the garbage collector does not manage.
func pointerTo(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// view returns n bytes of SQLite's memory as a slice.
func view(address uintptr, n int) []byte { return unsafe.Slice((*byte)(pointerTo(address)), n) }

// grow reallocates textMemory with n bytes.
func (c *liteConn) grow(n int) error {
	libc.Xfree(c.tls, c.textMemory)
	c.textMemorySize = 0
	if c.textMemory = libc.Xmalloc(c.tls, libc.Tsize_t(n)); c.textMemory == 0 {
		return &sqliteError{code: sqlite3.SQLITE_NOMEM}
	}
	c.textMemorySize = n
	return nil
}

func (c *liteConn) close() error {
	for _, p := range c.stmts {
		sqlite3.Xsqlite3_finalize(c.tls, p) // returns the error of the last step again
	}
	var err error
	if rc := sqlite3.Xsqlite3_close(c.tls, c.db); rc != sqlite3.SQLITE_OK {
		err = c.failed(rc)
	}
	libc.Xfree(c.tls, c.resultMemory)
	libc.Xfree(c.tls, c.textMemory)
	c.tls.Close()
	return err
}

func (c *liteConn) prepare(sql string) (uintptr, error) {
	if p, ok := c.stmts[sql]; ok {
		return p, nil
	}
	text, err := libc.CString(sql)
	if err != nil {
		return 0, err
	}
	defer libc.Xfree(c.tls, text)
	if rc := sqlite3.Xsqlite3_prepare_v3(c.tls, c.db, text, -1, sqlite3.SQLITE_PREPARE_PERSISTENT, c.resultMemory,
		0); rc != sqlite3.SQLITE_OK {
		return 0, c.failed(rc)
	}
	p := *(*uintptr)(pointerTo(c.resultMemory))
	c.stmts[sql] = p
	return p, nil
}

// bind prepares a statement and binds its arguments: int64, string, []byte or nil. The contents of texts
// and blobs stay in c.textMemory until the next statement.
func (c *liteConn) bind(sql string, args []any) (uintptr, error) {
	p, err := c.prepare(sql)
	if err != nil {
		return 0, err
	}
	if n := int(sqlite3.Xsqlite3_bind_parameter_count(c.tls, p)); n != len(args) {
		return 0, fmt.Errorf("%d arguments for %d placeholders in the SQL statement: %s", len(args), n, sql)
	}
	size := 1 // at least 1, so that empty values have an address too
	for _, a := range args {
		switch a := a.(type) {
		case string:
			size += len(a)
		case []byte:
			size += len(a)
		}
	}
	c.boundBytes += int64(size)
	if size > c.textMemorySize || c.textMemorySize > keptTextMemory && size <= keptTextMemory {
		if err := c.grow(max(size, keptTextMemory)); err != nil {
			return 0, err
		}
	}
	next := c.textMemory
	for i, a := range args {
		var rc int32
		switch a := a.(type) {
		case int64:
			rc = sqlite3.Xsqlite3_bind_int64(c.tls, p, int32(i+1), a)
		case string:
			copy(view(next, len(a)), a)
			rc = sqlite3.Xsqlite3_bind_text(c.tls, p, int32(i+1), next, int32(len(a)), sqlite3.SQLITE_STATIC)
			next += uintptr(len(a))
		case []byte:
			copy(view(next, len(a)), a)
			rc = sqlite3.Xsqlite3_bind_blob(c.tls, p, int32(i+1), next, int32(len(a)), sqlite3.SQLITE_STATIC)
			next += uintptr(len(a))
		case nil:
			rc = sqlite3.Xsqlite3_bind_null(c.tls, p, int32(i+1))
		default:
			return 0, errors.New("argument " + strconv.Itoa(i+1) + " has a type that SQLite does not support: " + sql)
		}
		if rc != sqlite3.SQLITE_OK {
			return 0, c.failed(rc)
		}
	}
	return p, nil
}

// exec executes a statement.
func (c *liteConn) exec(sql string, args ...any) error {
	_, err := c.count(sql, args...)
	return err
}

// writeRow implements conn.
func (c *liteConn) writeRow(sql string, args ...any) error { return c.exec(sql, args...) }

// begin begins the writer's transaction, and commit commits it.
func (c *liteConn) begin() error  { return c.exec(`BEGIN IMMEDIATE`) }
func (c *liteConn) commit() error { return c.exec(`COMMIT`) }

// rollback rolls the transaction back. SQLite may have done so already, so errors are ignored.
func (c *liteConn) rollback() { c.exec(`ROLLBACK`) }

// beginReading begins a read transaction, in which all reads see the same snapshot, and endReading ends it.
func (c *liteConn) beginReading() error { return c.exec(`BEGIN`) }
func (c *liteConn) endReading() error   { return c.exec(`ROLLBACK`) } // nothing was written

// queries implements conn.
func (c *liteConn) queries(list []batchQuery) error {
	for _, a := range list {
		if err := c.query(a.each, a.sql, a.args...); err != nil {
			return err
		}
	}
	return nil
}

// isOneOf implements conn.
func (c *liteConn) isOneOf(column string) string {
	return column + ` IN (SELECT value FROM json_each('[' || replace(?, ' ', ',') || ']'))`
}

// isOneOfWords implements conn.
func (c *liteConn) isOneOfWords(column string) string {
	return column + ` IN (SELECT value FROM json_each('["' || replace(?, ' ', '","') || '"]'))`
}

// readLimit implements conn. SQLite finds each row only when it is read, so no limit is needed.
func (c *liteConn) readLimit(int, int) int { return math.MaxInt32 }

// hasWritten implements conn. With SQLite, every write shows in the counters that the engine keeps.
func (c *liteConn) hasWritten() bool { return false }

// isInterruption reports whether err is an interruption by interruptWhenDone.
func (c *liteConn) isInterruption(err error) bool {
	var e *sqliteError
	return errors.As(err, &e) && e.code&0xff == sqlite3.SQLITE_INTERRUPT
}

// argumentBytes implements conn.
func (c *liteConn) argumentBytes() int64 { return c.boundBytes }

// count executes a statement and returns the number of changed rows. Arguments are int64, string, []byte or
// nil.
func (c *liteConn) count(sql string, args ...any) (int64, error) {
	p, err := c.bind(sql, args)
	if err != nil {
		return 0, err
	}
	rc := int32(sqlite3.SQLITE_ROW)
	for rc == sqlite3.SQLITE_ROW {
		rc = sqlite3.Xsqlite3_step(c.tls, p)
	}
	if rc != sqlite3.SQLITE_DONE {
		err = c.failed(rc)
	}
	sqlite3.Xsqlite3_reset(c.tls, p) // returns the error of step again
	if err != nil {
		return 0, err
	}
	return sqlite3.Xsqlite3_changes64(c.tls, c.db), nil
}

// query calls the callback each for every row, until it returns false. The row is valid only during this
// call. The callback must not execute another statement.
func (c *liteConn) query(each func(r row) (more bool, err error), sql string, args ...any) error {
	p, err := c.bind(sql, args)
	if err != nil {
		return err
	}
	outer := c.row // the callback of another query may have called this one
	c.row = liteRow{c.tls, p}
	for more := true; more && err == nil; {
		switch rc := sqlite3.Xsqlite3_step(c.tls, p); rc {
		case sqlite3.SQLITE_ROW:
			more, err = each(&c.row)
		case sqlite3.SQLITE_DONE:
			more = false
		default:
			err = c.failed(rc)
		}
	}
	c.row = outer
	sqlite3.Xsqlite3_reset(c.tls, p) // returns the error of step again
	return err
}

// number returns the integer in the first row, or 0 if there is no row.
func (c *liteConn) number(sql string, args ...any) (n int64, err error) {
	err = c.query(func(r row) (bool, error) {
		n = r.num(0)
		return false, nil
	}, sql, args...)
	return n, err
}

// interruptWhenDone interrupts the running statement when ctx ends, until release is called. SQLite forgets
// an interruption that arrives between two statements, so interruptWhenDone repeats it.
func (c *liteConn) interruptWhenDone(ctx context.Context) (release func()) {
	released, ended := make(chan struct{}), make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(ended)
		for {
			sqlite3.Xsqlite3_interrupt(c.tls, c.db)
			select {
			case <-released:
				return
			case <-time.After(interruptAgain):
			}
		}
	})
	return func() {
		if !unhook() {
			close(released)
			<-ended // another goroutine may use or close the connection next
		}
	}
}

// keepWAL makes the connection leave the WAL unchanged when it closes. The next start can diagnose a
// damaged WAL better.
func (c *liteConn) keepWAL() {
	sqlite3.Xsqlite3_db_config(c.tls, c.db, sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE,
		libc.VaList(c.resultMemory, int32(1), uintptr(0)))
}

// interruptAgain is the time between two interruptions of one statement.
const interruptAgain = 10 * time.Millisecond

// readerPragmas returns the pragmas for connections that read.
func readerPragmas() []string {
	return []string{`busy_timeout = 2000`, `query_only = 1`, `cache_size = -1024`, `trusted_schema = 0`}
}

// sqliteError is an error that SQLite reported.
type sqliteError struct {
	code    int // SQLite's extended result code
	text    string
	noSpace bool // the system refused a write for lack of space, with ENOSPC or another code
}

func (e *sqliteError) Error() string {
	name := sqlite.ErrorCodeString[e.code&0xff]
	if _, word, ok := strings.Cut(name, "("); ok {
		name = strings.TrimSuffix(word, ")")
	}
	return fmt.Sprintf("%s (%d)", strings.TrimSpace(e.text+" "+name), e.code)
}

// failed returns the error of a call whose result rc is not SQLITE_OK.
func (c *liteConn) failed(rc int32) error {
	text := libc.GoString(sqlite3.Xsqlite3_errstr(c.tls, rc))
	if c.db != 0 && sqlite3.Xsqlite3_extended_errcode(c.tls, c.db) == rc {
		text = libc.GoString(sqlite3.Xsqlite3_errmsg(c.tls, c.db))
	}
	e := &sqliteError{code: int(rc), text: text}
	if rc == sqlite3.SQLITE_IOERR_WRITE && c.db != 0 {
		errno := syscall.Errno(sqlite3.Xsqlite3_system_errno(c.tls, c.db))
		if e.noSpace = noSpace(errno); e.noSpace {
			e.text += ": " + errno.Error()
		}
	}
	return e
}

// kind classifies an error of SQLite.
func (e *sqliteError) kind() kind {
	if e.noSpace {
		return full
	}
	switch e.code & 0xff {
	case sqlite3.SQLITE_FULL:
		return full
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return busy
	case sqlite3.SQLITE_IOERR:
		// A full disk while SQLite writes the -shm file or truncates a file also arrives here as an I/O
		// error. It is treated as a breakage.
		return breakage
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY,
		sqlite3.SQLITE_NOMEM:
		return breakage
	}
	return mistake
}

// checkVersion rejects an SQLite older than 3.51.3. Older versions can lose a commit in WAL mode when a
// checkpoint and a writer run concurrently (sqlite.org, "WAL-reset bug").
func checkVersion(number int64) error {
	if number < 3_051_003 {
		return fmt.Errorf("this program was built with SQLite %d.%d.%d, but needs 3.51.3 or later", number/1_000_000,
			number/1000%1000, number%1000)
	}
	return nil
}
