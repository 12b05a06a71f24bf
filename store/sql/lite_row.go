package sql

import (
	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// liteRow is the current row of a statement on an SQLite connection.
type liteRow struct {
	tls  *libc.TLS
	stmt uintptr
}

// num implements row.
func (r *liteRow) num(column int) int64 {
	if sqlite3.Xsqlite3_column_type(r.tls, r.stmt, int32(column)) != sqlite3.SQLITE_INTEGER {
		return 0
	}
	return sqlite3.Xsqlite3_column_int64(r.tls, r.stmt, int32(column))
}

// text implements row.
func (r *liteRow) text(column int) string { return string(r.view(column)) }

// view implements row.
func (r *liteRow) view(column int) []byte {
	switch sqlite3.Xsqlite3_column_type(r.tls, r.stmt, int32(column)) {
	case sqlite3.SQLITE_TEXT, sqlite3.SQLITE_BLOB:
	default:
		return nil
	}
	from := sqlite3.Xsqlite3_column_blob(r.tls, r.stmt, int32(column))
	n := sqlite3.Xsqlite3_column_bytes(r.tls, r.stmt, int32(column))
	if n == 0 {
		return nil
	}
	return view(from, int(n))
}

// value implements row.
func (r *liteRow) value(column int) any {
	switch sqlite3.Xsqlite3_column_type(r.tls, r.stmt, int32(column)) {
	case sqlite3.SQLITE_INTEGER:
		return r.num(column)
	case sqlite3.SQLITE_TEXT:
		return r.text(column)
	case sqlite3.SQLITE_BLOB:
		return append([]byte{}, r.view(column)...)
	}
	return nil
}
