// Package sqlitedb opens and checks the SQLite file of a queue, and executes statements on it.
//
// Start with OpenWriter, which opens the file, and Conn, the connection.
package sqlitedb

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"modernc.org/libc"
	sqlite "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/store/database"
)

var _ database.MissingJobChecker = (*Conn)(nil)

// Conn is one connection to SQLite with its prepared statements. Only one goroutine may use it at a time. It
// calls SQLite's C API through modernc.org/sqlite/lib, where addresses in SQLite's memory are uintptr. It does
// not use the database/sql driver, which copies every value twice and takes locks that a single goroutine does
// not need. That would cost a ninth of the service's CPU time for a short job. See docs/decisions/0007.
type Conn struct {
	// Other packages need TLS and DBHandle to call those functions of SQLite's C API for which Conn has no method.
	TLS                *libc.TLS
	DBHandle           uintptr
	PreparedStmts      map[string]uintptr // prepared statements by SQL text
	resultMemory       uintptr            // memory in which SQLite stores the value that a call returns
	argumentMemory     uintptr            // memory for the texts and blobs passed to one statement
	argumentMemorySize int                // size of argumentMemory in bytes
	totalArgumentBytes int64              // total size in bytes of the texts and blobs passed to statements
	currentRow         Row                // current row of the running query
}

// maxKeptArgumentMemory is the maximum size of argumentMemory, in bytes, that is kept after a statement.
const maxKeptArgumentMemory = 64 << 10

// configureSQLite sets options that apply to all connections. SQLite uses open-file-description locks where
// the system has them, and POSIX locks elsewhere. A POSIX lock is lost when this process closes any
// descriptor of the file; an open-file-description lock is not. The locks on the -shm file are always POSIX
// locks. See docs/decisions/0034.
var configureSQLite = sync.OnceFunc(func() {
	sqlite.OFDLocking(true)
	sqlite.StrictPragmas(true)
})

// An SQLite older than 3.51.3 can lose a commit in WAL mode when a checkpoint and a writer run at the
// same time (sqlite.org, "WAL-reset bug"). This line does not compile with such a version, because
// the constant is negative.
const _ uint = sqlite3.SQLITE_VERSION_NUMBER - 3_051_003

// Open opens a database and executes the pragmas. It creates the database if it does not exist.
func Open(path string, pragmas ...string) (*Conn, error) {
	return OpenWithFlags(path, ReadWriteFlags, pragmas...)
}

// ReadWriteFlags are the SQLite flags that open a database and create it if it does not exist.
const ReadWriteFlags = sqlite3.SQLITE_OPEN_READWRITE | sqlite3.SQLITE_OPEN_CREATE

// OpenWithFlags opens a database with the given SQLite flags and executes the pragmas.
func OpenWithFlags(path string, flags int32, pragmas ...string) (_ *Conn, err error) {
	configureSQLite()
	c := &Conn{TLS: libc.NewTLS(), PreparedStmts: map[string]uintptr{}}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if c.resultMemory = libc.Xmalloc(c.TLS, 16); c.resultMemory == 0 {
		return nil, &Error{Code: sqlite3.SQLITE_NOMEM}
	}
	if err := c.replaceArgumentMemory(maxKeptArgumentMemory); err != nil {
		return nil, err
	}
	name, err := libc.CString(path)
	if err != nil {
		return nil, err
	}
	defer libc.Xfree(c.TLS, name)
	rc := sqlite3.Xsqlite3_open_v2(c.TLS, name, c.resultMemory,
		flags|sqlite3.SQLITE_OPEN_NOMUTEX|sqlite3.SQLITE_OPEN_EXRESCODE, 0)
	c.DBHandle = *(*uintptr)(pointerTo(c.resultMemory))
	if rc != sqlite3.SQLITE_OK {
		return nil, c.ResultError(rc)
	}
	// Defensive mode disables SQL features that can corrupt a database. Without it, the schema of a file from an
	// attacker could use these features.
	if rc := sqlite3.Xsqlite3_db_config(c.TLS, c.DBHandle, sqlite3.SQLITE_DBCONFIG_DEFENSIVE,
		libc.VaList(c.resultMemory, int32(1), uintptr(0))); rc != sqlite3.SQLITE_OK {
		return nil, c.ResultError(rc)
	}
	for _, p := range pragmas {
		if err := c.Exec(`PRAGMA ` + p); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// pointerTo converts an address to a pointer. The address is in SQLite's memory, outside Go's heap.
func pointerTo(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// bytesAt returns n bytes of SQLite's memory as a slice.
func bytesAt(address uintptr, n int) []byte { return unsafe.Slice((*byte)(pointerTo(address)), n) }

// replaceArgumentMemory replaces argumentMemory by new memory of byteCount bytes. The old contents are lost.
func (c *Conn) replaceArgumentMemory(byteCount int) error {
	libc.Xfree(c.TLS, c.argumentMemory)
	c.argumentMemorySize = 0
	if c.argumentMemory = libc.Xmalloc(c.TLS, libc.Tsize_t(byteCount)); c.argumentMemory == 0 {
		return &Error{Code: sqlite3.SQLITE_NOMEM}
	}
	c.argumentMemorySize = byteCount
	return nil
}

// Close closes the connection and its statements.
func (c *Conn) Close() error {
	for _, p := range c.PreparedStmts {
		sqlite3.Xsqlite3_finalize(c.TLS, p) // ignore the result, which only repeats the error of the last step
	}
	var err error
	if rc := sqlite3.Xsqlite3_close(c.TLS, c.DBHandle); rc != sqlite3.SQLITE_OK {
		err = c.ResultError(rc)
	}
	libc.Xfree(c.TLS, c.resultMemory)
	libc.Xfree(c.TLS, c.argumentMemory)
	c.TLS.Close()
	return err
}

func (c *Conn) prepare(sql string) (uintptr, error) {
	if p, ok := c.PreparedStmts[sql]; ok {
		return p, nil
	}
	text, err := libc.CString(sql)
	if err != nil {
		return 0, err
	}
	defer libc.Xfree(c.TLS, text)
	if rc := sqlite3.Xsqlite3_prepare_v3(c.TLS, c.DBHandle, text, -1, sqlite3.SQLITE_PREPARE_PERSISTENT, c.resultMemory,
		0); rc != sqlite3.SQLITE_OK {
		return 0, c.ResultError(rc)
	}
	p := *(*uintptr)(pointerTo(c.resultMemory))
	c.PreparedStmts[sql] = p
	return p, nil
}

// prepareAndBind prepares a statement and binds its arguments; see database.Statements. Texts and blobs are copied
// to c.argumentMemory, which stays unchanged until the next statement.
func (c *Conn) prepareAndBind(sql string, args []any) (uintptr, error) {
	p, err := c.prepare(sql)
	if err != nil {
		return 0, err
	}
	if n := int(sqlite3.Xsqlite3_bind_parameter_count(c.TLS, p)); n != len(args) {
		return 0, fmt.Errorf("bug in queuectl: %d arguments for the %d placeholders of the SQL statement %s", len(args), n,
			sql)
	}
	size := 1 // not 0, so that empty values have an address too
	for _, a := range args {
		switch a := a.(type) {
		case string:
			size += len(a)
		case []byte:
			size += len(a)
		}
	}
	c.totalArgumentBytes += int64(size)
	if size > c.argumentMemorySize || c.argumentMemorySize > maxKeptArgumentMemory && size <= maxKeptArgumentMemory {
		if err := c.replaceArgumentMemory(max(size, maxKeptArgumentMemory)); err != nil {
			return 0, err
		}
	}
	next := c.argumentMemory
	for i, a := range args {
		var rc int32
		switch a := a.(type) {
		case int64:
			rc = sqlite3.Xsqlite3_bind_int64(c.TLS, p, int32(i+1), a)
		case string:
			copy(bytesAt(next, len(a)), a)
			rc = sqlite3.Xsqlite3_bind_text(c.TLS, p, int32(i+1), next, int32(len(a)), sqlite3.SQLITE_STATIC)
			next += uintptr(len(a))
		case []byte:
			copy(bytesAt(next, len(a)), a)
			rc = sqlite3.Xsqlite3_bind_blob(c.TLS, p, int32(i+1), next, int32(len(a)), sqlite3.SQLITE_STATIC)
			next += uintptr(len(a))
		case nil:
			rc = sqlite3.Xsqlite3_bind_null(c.TLS, p, int32(i+1))
		default:
			n, isInteger := database.IntegerArgument(a)
			if !isInteger {
				return 0, fmt.Errorf("bug in queuectl: argument %d of the SQL statement %s has the type %T, which SQLite "+
					"does not support", i+1, sql, a)
			}
			rc = sqlite3.Xsqlite3_bind_int64(c.TLS, p, int32(i+1), n)
		}
		if rc != sqlite3.SQLITE_OK {
			return 0, c.ResultError(rc)
		}
	}
	return p, nil
}

// Exec executes a statement with arguments for its placeholders.
func (c *Conn) Exec(sql string, args ...any) error {
	_, err := c.ExecRowsAffected(sql, args...)
	return err
}

// WriteRow implements database.Conn. It executes the statement immediately.
func (c *Conn) WriteRow(sql string, args ...any) error { return c.Exec(sql, args...) }

// Begin begins the writer's transaction, and Commit commits it.
func (c *Conn) Begin() error  { return c.Exec(`BEGIN IMMEDIATE`) }
func (c *Conn) Commit() error { return c.Exec(`COMMIT`) }

// Rollback rolls the transaction back. SQLite may have done so already, so errors are ignored.
func (c *Conn) Rollback() { c.Exec(`ROLLBACK`) }

// BeginSnapshot begins a read transaction, in which all reads see the same snapshot, and EndSnapshot ends it.
func (c *Conn) BeginSnapshot() error { return c.Exec(`BEGIN`) }
func (c *Conn) EndSnapshot() error   { return c.Exec(`ROLLBACK`) } // a rollback is enough: nothing was written

// QueryAll implements database.Statements. It executes statements one after another.
func (c *Conn) QueryAll(queries []database.Query) error {
	for _, a := range queries {
		if err := c.Query(a.HandleRow, a.SQL, a.Args...); err != nil {
			return err
		}
	}
	return nil
}

// ColumnInNumbersSQL implements database.Statements.
func (c *Conn) ColumnInNumbersSQL(column string) string {
	return column + ` IN (SELECT value FROM json_each('[' || replace(?, ' ', ',') || ']'))`
}

// ColumnInWordsSQL implements database.Statements.
func (c *Conn) ColumnInWordsSQL(column string) string {
	return column + ` IN (SELECT value FROM json_each('["' || replace(?, ' ', '","') || '"]'))`
}

// QueryRowLimit implements database.Conn. No limit is needed, because SQLite searches for a
// row only when it is read.
func (c *Conn) QueryRowLimit(int, int) int { return math.MaxInt32 }

// HasUncountedChanges implements database.Conn. It returns false, because the engine's own counters include every
// write.
func (c *Conn) HasUncountedChanges() bool { return false }

// IsInterruption reports whether err was caused by InterruptWhenDone, which interrupts statements.
func (c *Conn) IsInterruption(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code&0xff == sqlite3.SQLITE_INTERRUPT
}

// TotalArgumentBytes implements database.Conn. It returns the total size of the texts and blobs passed to statements.
func (c *Conn) TotalArgumentBytes() int64 { return c.totalArgumentBytes }

// ExecCount executes a statement and returns the number of changed rows.
func (c *Conn) ExecRowsAffected(sql string, args ...any) (int64, error) {
	p, err := c.prepareAndBind(sql, args)
	if err != nil {
		return 0, err
	}
	rc := int32(sqlite3.SQLITE_ROW)
	for rc == sqlite3.SQLITE_ROW {
		rc = sqlite3.Xsqlite3_step(c.TLS, p)
	}
	if rc != sqlite3.SQLITE_DONE {
		err = c.ResultError(rc)
	}
	sqlite3.Xsqlite3_reset(c.TLS, p) // ignore the result, which only repeats the error of sqlite3_step
	if err != nil {
		return 0, err
	}
	return sqlite3.Xsqlite3_changes64(c.TLS, c.DBHandle), nil
}

// Query calls handleRow for every row, until handleRow returns false. The row is valid only during the call.
// handleRow must not execute another statement.
func (c *Conn) Query(handleRow func(r database.Row) (more bool, err error), sql string, args ...any) error {
	p, err := c.prepareAndBind(sql, args)
	if err != nil {
		return err
	}
	outer := c.currentRow // keep the row of an outer query, whose handleRow may have called this method
	c.currentRow = Row{c.TLS, p}
	for more := true; more && err == nil; {
		switch rc := sqlite3.Xsqlite3_step(c.TLS, p); rc {
		case sqlite3.SQLITE_ROW:
			more, err = handleRow(&c.currentRow)
		case sqlite3.SQLITE_DONE:
			more = false
		default:
			err = c.ResultError(rc)
		}
	}
	c.currentRow = outer
	sqlite3.Xsqlite3_reset(c.TLS, p) // ignore the result, which only repeats the error of sqlite3_step
	return err
}

// QueryNumber implements database.Statements. It returns the integer in the first row, or 0.
func (c *Conn) QueryNumber(sql string, args ...any) (int64, error) {
	return database.QueryNumber(c, sql, args...)
}

// InterruptWhenDone interrupts the running statement when ctx ends, until release is called. SQLite ignores an
// interruption that arrives between two statements, so it is repeated.
func (c *Conn) InterruptWhenDone(ctx context.Context) (release func()) {
	released, ended := make(chan struct{}), make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(ended)
		for {
			sqlite3.Xsqlite3_interrupt(c.TLS, c.DBHandle)
			select {
			case <-released:
				return
			case <-time.After(interruptInterval):
			}
		}
	})
	return func() {
		if !unhook() {
			close(released)
			<-ended // wait: the caller may use or close the connection next
		}
	}
}

// KeepWALOnClose makes SQLite leave the WAL unchanged when the connection closes. Otherwise SQLite would empty the
// WAL, and the next start could not find damage in it.
func (c *Conn) KeepWALOnClose() {
	sqlite3.Xsqlite3_db_config(c.TLS, c.DBHandle, sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE,
		libc.VaList(c.resultMemory, int32(1), uintptr(0)))
}

// interruptInterval is the time between two interruptions of one statement.
const interruptInterval = 10 * time.Millisecond

// ReaderPragmas returns the pragmas for connections that read.
func ReaderPragmas() []string {
	return []string{`busy_timeout = 2000`, `query_only = 1`, `cache_size = -1024`, `trusted_schema = 0`}
}

// Error is an error that SQLite reported.
type Error struct {
	Code         int // SQLite's extended result code
	message      string
	isOutOfSpace bool // the system refused a write for lack of space, for example with ENOSPC
}

// Error returns SQLite's message with the name and number of its error code.
func (e *Error) Error() string {
	name := sqlite.ErrorCodeString[e.Code&0xff]
	if _, word, ok := strings.Cut(name, "("); ok {
		name = strings.TrimSuffix(word, ")")
	}
	return fmt.Sprintf("%s (%d)", strings.TrimSpace(e.message+" "+name), e.Code)
}

// ResultError returns the error of a call whose resultCode is not SQLITE_OK.
func (c *Conn) ResultError(resultCode int32) error {
	text := libc.GoString(sqlite3.Xsqlite3_errstr(c.TLS, resultCode))
	if c.DBHandle != 0 && sqlite3.Xsqlite3_extended_errcode(c.TLS, c.DBHandle) == resultCode {
		text = libc.GoString(sqlite3.Xsqlite3_errmsg(c.TLS, c.DBHandle))
	}
	e := &Error{Code: int(resultCode), message: text}
	if resultCode == sqlite3.SQLITE_IOERR_WRITE && c.DBHandle != 0 {
		errno := syscall.Errno(sqlite3.Xsqlite3_system_errno(c.TLS, c.DBHandle))
		if e.isOutOfSpace = IsDiskLimitErrno(errno); e.isOutOfSpace {
			e.message += ": " + errno.Error()
		}
	}
	return e
}

// Kind classifies an error of SQLite.
func (e *Error) Kind() database.ErrorKind {
	if e.isOutOfSpace {
		return database.DiskFull
	}
	switch e.Code & 0xff {
	case sqlite3.SQLITE_FULL:
		return database.DiskFull
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return database.DatabaseBusy
	case sqlite3.SQLITE_IOERR:
		// If the disk is full while SQLite writes the -shm file or truncates a file, SQLite returns an I/O error.
		// This counts as a failure of the database.
		return database.DatabaseFailed
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY,
		sqlite3.SQLITE_NOMEM:
		return database.DatabaseFailed
	}
	return database.RequestFailed
}

// Row is the current row of a statement on an SQLite connection.
type Row struct {
	tls  *libc.TLS
	stmt uintptr
}

// Int64 implements database.Row. It returns an integer, or 0 if the column holds another type.
func (r *Row) Int64(column int) int64 {
	if sqlite3.Xsqlite3_column_type(r.tls, r.stmt, int32(column)) != sqlite3.SQLITE_INTEGER {
		return 0
	}
	return sqlite3.Xsqlite3_column_int64(r.tls, r.stmt, int32(column))
}

// Text implements database.Row. It returns a text, or the bytes of a blob as a string.
func (r *Row) Text(column int) string { return string(r.BytesView(column)) }

// BytesView implements database.Row. It returns a text or blob without copying it from SQLite's memory. The bytes
// are valid only until the next row is read.
func (r *Row) BytesView(column int) []byte {
	kind := sqlite3.Xsqlite3_column_type(r.tls, r.stmt, int32(column))
	if kind != sqlite3.SQLITE_TEXT && kind != sqlite3.SQLITE_BLOB {
		return nil
	}
	from := sqlite3.Xsqlite3_column_blob(r.tls, r.stmt, int32(column))
	n := sqlite3.Xsqlite3_column_bytes(r.tls, r.stmt, int32(column))
	if n == 0 {
		return nil
	}
	return bytesAt(from, int(n))
}

// Value implements database.Row. It returns nil, an int64, a string, or a copy of a blob's bytes.
func (r *Row) Value(column int) any {
	switch sqlite3.Xsqlite3_column_type(r.tls, r.stmt, int32(column)) {
	case sqlite3.SQLITE_INTEGER:
		return r.Int64(column)
	case sqlite3.SQLITE_TEXT:
		return r.Text(column)
	case sqlite3.SQLITE_BLOB:
		return append([]byte{}, r.BytesView(column)...)
	}
	return nil
}
