package sql

import (
	"bytes"
	"encoding/hex"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
)

// serverRow is the current row of a query on a server.
type serverRow struct {
	fields []pgconn.FieldDescription
	values [][]byte
}

// clone returns a copy of the row that stays valid after the call that received the row.
func (r *serverRow) clone() serverRow {
	n := 0
	for _, v := range r.values {
		n += len(v)
	}
	room, values := make([]byte, 0, n), make([][]byte, len(r.values))
	for i, v := range r.values {
		if v != nil {
			at := len(room)
			room = append(room, v...)
			values[i] = room[at:len(room):len(room)]
		}
	}
	return serverRow{fields: r.fields, values: values}
}

// OIDs of column types in PostgreSQL's catalog.
const (
	byteaOID = 17
	int8OID  = 20
	textOID  = 25
)

// num implements row. It returns 1 for true.
func (r *serverRow) num(column int) int64 {
	v := r.values[column]
	if len(v) == 1 && v[0] == 't' {
		return 1
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// text implements row.
func (r *serverRow) text(column int) string { return string(r.view(column)) }

// view implements row. A blob is decoded into new memory.
func (r *serverRow) view(column int) []byte {
	v := r.values[column]
	if r.fields[column].DataTypeOID == byteaOID && bytes.HasPrefix(v, []byte(`\x`)) {
		raw := make([]byte, hex.DecodedLen(len(v)-2))
		if _, err := hex.Decode(raw, v[2:]); err != nil {
			return nil
		}
		return raw
	}
	if len(v) == 0 {
		return nil
	}
	return v
}

// value implements row.
func (r *serverRow) value(column int) any {
	switch {
	case r.values[column] == nil:
		return nil
	case r.fields[column].DataTypeOID == byteaOID:
		return append([]byte{}, r.view(column)...)
	case r.fields[column].DataTypeOID == int8OID:
		return r.num(column)
	}
	return string(r.values[column])
}
