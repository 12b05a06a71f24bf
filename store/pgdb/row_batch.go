package pgdb

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// rowBatch collects rows that one statement then writes together, because the server needs more time for a
// statement than for a row. The statement gets one array per column and turns the arrays into rows. If a
// column has the same value in all rows, the statement gets this value instead of an array. See
// docs/decisions/0013.
type rowBatch struct {
	singleStatement *preparedStatement // statement that writes one row
	// combinedStatement is the statement that writes all rows. It is nil if it must be created: at first, and
	// after a column that had the same value in all rows has got a second value.
	combinedStatement *preparedStatement
	table             string
	isUpdate          bool // the statement updates existing rows
	columns           []column
	updatedKeys       map[int64]struct{} // keys of the rows to update, because one statement must not update a row twice
	rowCount          int                // number of collected rows
	valueBytes        int                // size of their values
}

// column holds the values of one column as an array in PostgreSQL's binary format. The array's header is
// added at the end, because it contains the length.
type column struct {
	values      []byte
	firstLength int // length of the first value, including its length field
	hasNulls    bool
	varies      bool // two rows have different values
}

// arrayHeaderSize is the length in bytes of an array's header: dimensions, null flag, element type, length
// and lower bound.
const arrayHeaderSize = 20

// Limits of the number and the size of the rows that one statement writes.
const (
	maxBatchRows  = 250
	maxBatchBytes = 256 << 10
)

// arrayTypes maps the type OIDs of columns that a rowBatch supports to the types' names.
var arrayTypes = map[uint32]string{int8OID: "bigint", textOID: "text", byteaOID: "bytea"}

// newRowBatch returns an empty collection of rows for a statement that writes one row. The types of its
// arguments must be known.
func newRowBatch(s *preparedStatement) *rowBatch {
	words := strings.Fields(s.text)
	r := &rowBatch{singleStatement: s, columns: make([]column, len(s.argumentTypes)), updatedKeys: map[int64]struct{}{},
		isUpdate: words[0] == "UPDATE", table: words[2]}
	if r.isUpdate {
		r.table = words[1]
	}
	// At least one column must be an array, because the array's length is the number of rows.
	r.columns[len(r.columns)-1].varies = true
	return r
}

// statement returns the statement that writes all rows.
func (r *rowBatch) statement() *preparedStatement {
	if r.combinedStatement != nil {
		return r.combinedStatement
	}
	var arrayArguments, names, values []string
	for i, oid := range r.singleStatement.argumentTypes {
		n := strconv.Itoa(i + 1)
		if r.columns[i].varies {
			arrayArguments, names, values = append(arrayArguments, "$"+n+"::"+arrayTypes[oid]+"[]"), append(names, "c"+n),
				append(values, "given.c"+n)
		} else {
			values = append(values, "$"+n+"::"+arrayTypes[oid])
		}
	}
	given := " FROM unnest(" + strings.Join(arrayArguments, ", ") + ") AS given(" + strings.Join(names, ", ") + ")"
	text := ""
	if r.isUpdate {
		set, where, _ := strings.Cut(placeholderPattern.ReplaceAllStringFunc(r.singleStatement.text, func(a string) string {
			n, _ := strconv.Atoi(a[1:])
			return values[n-1]
		}), " WHERE ")
		text = set + given + " WHERE " + where
	} else {
		into, _, _ := strings.Cut(r.singleStatement.text, "VALUES")
		text = into + "SELECT " + strings.Join(values, ", ") + given
	}
	r.combinedStatement = &preparedStatement{text: text, mayWrite: true}
	return r.combinedStatement
}

// placeholderPattern matches a placeholder in a statement.
var placeholderPattern = regexp.MustCompile(`\$[0-9]+`)

// notePrepared records the server's reply that a statement is prepared. The reply contains the types of the
// arguments.
func (s *preparedStatement) notePrepared(result any) {
	s.isPrepared = true
	description, described := result.(*pgconn.StatementDescription)
	if !described || !s.writesOneRow {
		return
	}
	for _, oid := range description.ParamOIDs {
		if arrayTypes[oid] == "" {
			return
		}
	}
	s.argumentTypes = description.ParamOIDs
}

// add adds a row. The arguments must have the types that the statement expects.
func (r *rowBatch) add(args []any) error {
	for i, a := range args {
		c := &r.columns[i]
		if r.rowCount == 0 {
			c.values, c.hasNulls = append(c.values[:0], make([]byte, arrayHeaderSize)...), false
		}
		start := len(c.values)
		switch a := a.(type) {
		case int64:
			c.values = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(c.values, 8), uint64(a))
		case string:
			a = CleanText(a)
			c.values = append(binary.BigEndian.AppendUint32(c.values, uint32(len(a))), a...)
		case []byte:
			c.values = append(binary.BigEndian.AppendUint32(c.values, uint32(len(a))), a...)
		case nil:
			c.values, c.hasNulls = binary.BigEndian.AppendUint32(c.values, nullLength), true
		default:
			return unsupportedArgument(i, r.singleStatement.text, a)
		}
		if r.rowCount == 0 {
			c.firstLength = len(c.values) - start
		} else if !c.varies && !bytes.Equal(c.values[start:], c.values[arrayHeaderSize:arrayHeaderSize+c.firstLength]) {
			c.varies, r.combinedStatement = true, nil
		}
		r.valueBytes += len(c.values) - start
	}
	r.rowCount++
	return nil
}

// nullLength is the length field of a NULL value.
const nullLength = math.MaxUint32

// values returns the arguments of the statement that writes all rows. They are valid only until the next row is
// added.
func (r *rowBatch) values() (values [][]byte, formats []int16) {
	for i := range r.columns {
		c := &r.columns[i]
		value := c.values
		if c.varies {
			head := binary.BigEndian.AppendUint32(value[:0], 1)
			hasNulls := uint32(0)
			if c.hasNulls {
				hasNulls = 1
			}
			head = binary.BigEndian.AppendUint32(head, hasNulls)
			head = binary.BigEndian.AppendUint32(head, r.singleStatement.argumentTypes[i])
			head = binary.BigEndian.AppendUint32(head, uint32(r.rowCount))
			binary.BigEndian.AppendUint32(head, 1)
		} else if value = value[arrayHeaderSize+4 : arrayHeaderSize+c.firstLength]; c.hasNulls {
			value = nil
		}
		values, formats = append(values, value), append(formats, 1)
	}
	return values, formats
}

// clear removes all rows.
func (r *rowBatch) clear() {
	clear(r.updatedKeys)
	r.rowCount, r.valueBytes = 0, 0
}

// WriteRow implements database.Conn. It collects the row, and sends it later together with others. The order
// of rows is kept within a table, but not between tables.
func (c *Conn) WriteRow(sql string, args ...any) error {
	s := c.statement(sql)
	s.writesOneRow = true
	if c.cancelTx != nil && !s.isPrepared {
		if err := c.prepare(s); err != nil {
			return err
		}
	}
	if c.cancelTx == nil || s.argumentTypes == nil { // no transaction, or the argument types are not supported
		return c.Exec(sql, args...)
	}
	return c.inPipeline(func() error {
		if s.rowsToSend == nil {
			s.rowsToSend = newRowBatch(s)
		}
		r := s.rowsToSend
		key, twice := int64(0), false
		if r.isUpdate {
			key = args[len(args)-1].(int64)
			_, twice = r.updatedKeys[key]
		}
		if before := c.collectedRows[r.table]; before != nil && (before != s || twice) {
			if err := c.sendTableRows(r.table); err != nil {
				return err
			}
		}
		had := r.valueBytes
		if err := r.add(args); err != nil {
			return err
		}
		if r.isUpdate {
			r.updatedKeys[key] = struct{}{}
		}
		c.collectedRows[r.table], c.hasWritten = s, true
		c.sentBytes += int64(r.valueBytes - had)
		if r.rowCount >= maxBatchRows || r.valueBytes >= maxBatchBytes {
			if err := c.sendTableRows(r.table); err != nil {
				return err
			}
			return c.sendSync() // the server processes these rows while more are collected
		}
		return nil
	})
}

// prepare prepares a statement and waits for the types of its arguments.
func (c *Conn) prepare(s *preparedStatement) error {
	return c.inPipeline(func() error {
		c.sendPrepare(s)
		_, err := c.flushAndReadReplies(0)
		return err
	})
}

// sendTableRows sends the collected rows of a table.
func (c *Conn) sendTableRows(table string) error {
	s := c.collectedRows[table]
	delete(c.collectedRows, table)
	r := s.rowsToSend
	values, formats := r.values()
	c.unreadBytes += r.valueBytes
	err := c.sendValues(r.statement(), values, formats)
	r.clear()
	return cmp.Or(err, c.readRepliesIfMany())
}

// sendCollectedRows sends the collected rows of all tables.
func (c *Conn) sendCollectedRows() error {
	for table := range c.collectedRows {
		if err := c.sendTableRows(table); err != nil {
			return err
		}
	}
	return nil
}

// discardCollectedRows discards the rows that were collected but not sent, because the transaction ends
// without them.
func (c *Conn) discardCollectedRows() {
	for table, s := range c.collectedRows {
		s.rowsToSend.clear()
		delete(c.collectedRows, table)
	}
}
