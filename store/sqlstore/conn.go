package sqlstore

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"

	sqlite "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// conn is one connection with its prepared statements. It speaks to the driver
// directly: database/sql costs 2 µs more a statement. One goroutine at a time.
type conn struct {
	c       driver.Conn
	stmts   map[string]driver.Stmt
	args    []driver.NamedValue
	row     []driver.Value
	columns map[string]int
}

func openConn(dsn string) (*conn, error) {
	c, err := (&sqlite.Driver{}).Open(dsn)
	if err != nil {
		return nil, err
	}
	return &conn{c: c, stmts: map[string]driver.Stmt{}, columns: map[string]int{}}, nil
}

func (c *conn) close() error {
	for _, s := range c.stmts {
		s.Close() // Close of the connection tells what matters
	}
	return c.c.Close()
}

func (c *conn) prepare(sql string) (driver.Stmt, error) {
	if s, ok := c.stmts[sql]; ok {
		return s, nil
	}
	s, err := c.c.Prepare(sql)
	if err != nil {
		return nil, err
	}
	c.stmts[sql] = s
	return s, nil
}

func (c *conn) bind(args []driver.Value) []driver.NamedValue {
	c.args = c.args[:0]
	for i, a := range args {
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return c.args
}

// exec runs a statement and says how many rows it changed. Arguments are int64,
// string, []byte or nil.
func (c *conn) exec(sql string, args ...driver.Value) (int64, error) {
	s, err := c.prepare(sql)
	if err != nil {
		return 0, err
	}
	r, err := s.(driver.StmtExecContext).ExecContext(context.Background(), c.bind(args))
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// query calls each with every row until it says no. The row is valid during the
// call only; no other statement may run in it.
func (c *conn) query(each func(row []driver.Value) (more bool, err error), sql string, args ...driver.Value) error {
	s, err := c.prepare(sql)
	if err != nil {
		return err
	}
	rows, err := s.(driver.StmtQueryContext).QueryContext(context.Background(), c.bind(args))
	if err != nil {
		return err
	}
	n, known := c.columns[sql]
	if !known {
		n = len(rows.Columns())
		c.columns[sql] = n
	}
	for len(c.row) < n {
		c.row = append(c.row, nil)
	}
	for more := true; more && err == nil; {
		if err = rows.Next(c.row[:n]); err == nil {
			more, err = each(c.row[:n])
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, rows.Close())
}

// number reads the one integer of a statement's first row, 0 if there is none.
func (c *conn) number(sql string, args ...driver.Value) (n int64, err error) {
	err = c.query(func(row []driver.Value) (bool, error) {
		n, _ = row[0].(int64)
		return false, nil
	}, sql, args...)
	return n, err
}

// kind sorts the failures of SQLite by what must follow.
type kind uint8

const (
	refusal  kind = iota // the request was refused before it wrote
	mistake              // of this request alone: it is undone
	full                 // the disk is full: nothing of the transaction holds
	busy                 // another program holds the database
	breakage             // the disk or the file failed: the outcome may be unknown
)

func kindOf(err error) kind {
	var e *sqlite.Error
	var refused *queue.Error
	switch {
	case errors.As(err, &e):
	case errors.As(err, &refused), errors.Is(err, store.ErrLeased):
		return refusal
	default:
		return mistake
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_FULL:
		return full
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return busy
	case sqlite3.SQLITE_IOERR:
		// A full disk met while writing the -shm or while truncating is told as
		// an I/O error; the system's own word for it is not kept by the driver,
		// so it stays a breakage.
		return breakage
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM:
		return breakage
	}
	return mistake
}

// checkVersion refuses an SQLite older than 3.51.3, which could lose a commit
// in WAL mode when a checkpoint met a writer (sqlite.org, "WAL-reset bug").
func checkVersion(number int64) error {
	if number < 3_051_003 {
		return fmt.Errorf("SQLite %d.%d.%d is linked; at least 3.51.3 is needed", number/1_000_000, number/1000%1000, number%1000)
	}
	return nil
}
