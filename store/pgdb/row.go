package pgdb

import (
	"bytes"
	"encoding/hex"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
)

// Row is the current row of a query on a server.
type Row struct {
	fields []pgconn.FieldDescription
	values [][]byte
}

// Clone returns a copy of the row. The row itself is valid only during the callback that receives it.
func (r *Row) Clone() Row {
	rest, values := bytes.Join(r.values, nil), make([][]byte, len(r.values)) // allocate the bytes of all values once
	for i, v := range r.values {
		if v != nil {
			values[i], rest = rest[:len(v):len(v)], rest[len(v):]
		}
	}
	return Row{fields: r.fields, values: values}
}

// OIDs of column types that the server sends.
const (
	byteaOID = 17
	int8OID  = 20
	textOID  = 25
)

// Int64 implements database.Row. It returns an integer; a boolean true counts as 1.
func (r *Row) Int64(column int) int64 {
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

// Text implements database.Row. It returns a text or the bytes of a blob.
func (r *Row) Text(column int) string { return string(r.BytesView(column)) }

// BytesView implements database.Row. It returns a text or blob. A blob is decoded into new memory.
func (r *Row) BytesView(column int) []byte {
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

// Value implements database.Row. It returns nil, an int64, a string, or a copy of a blob's bytes.
func (r *Row) Value(column int) any {
	switch {
	case r.values[column] == nil:
		return nil
	case r.fields[column].DataTypeOID == byteaOID:
		return append([]byte{}, r.BytesView(column)...)
	case r.fields[column].DataTypeOID == int8OID:
		return r.Int64(column)
	}
	return string(r.values[column])
}
