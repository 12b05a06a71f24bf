package sqlitedb

import (
	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// Row is the current row of a statement on an SQLite connection.
type Row struct {
	tls  *libc.TLS
	stmt uintptr
}

// Num implements database.Row.
func (r *Row) Num(column int) int64 {
	if sqlite3.Xsqlite3_column_type(r.tls, r.stmt, int32(column)) != sqlite3.SQLITE_INTEGER {
		return 0
	}
	return sqlite3.Xsqlite3_column_int64(r.tls, r.stmt, int32(column))
}

// Text implements database.Row.
func (r *Row) Text(column int) string { return string(r.View(column)) }

// View implements database.Row.
func (r *Row) View(column int) []byte {
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

// Value implements database.Row.
func (r *Row) Value(column int) any {
	switch sqlite3.Xsqlite3_column_type(r.tls, r.stmt, int32(column)) {
	case sqlite3.SQLITE_INTEGER:
		return r.Num(column)
	case sqlite3.SQLITE_TEXT:
		return r.Text(column)
	case sqlite3.SQLITE_BLOB:
		return append([]byte{}, r.View(column)...)
	}
	return nil
}
