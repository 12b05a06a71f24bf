package pgdb

import (
	"bytes"
	"encoding/binary"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queuectl/queuectl/store/database"
)

// rowBatch collects rows that one statement then writes together, because the server needs more time for a
// statement than for a row. The statement gets one array per column and turns the arrays into rows. If a
// column has the same value in all rows, the statement gets this value instead of an array. See
// docs/decisions/0013.
type rowBatch struct {
	singleRowStatement *preparedStatement // statement that writes one row
	// multiRowStatement is the statement that writes all rows. It is nil if it must be created: at first, and
	// after a column that had the same value in all rows has got a second value.
	multiRowStatement *preparedStatement
	table             string
	isUpdate          bool // the statement updates existing rows
	columns           []columnArray
	updatedKeys       map[int64]struct{} // keys of the rows to update, because one statement must not update a row twice
	rowCount          int                // number of collected rows
	valueBytes        int                // size in bytes of the values of these rows
}

// columnArray holds the values of one column as an array in PostgreSQL's binary format. The array's header
// is filled in last, because it contains the length.
type columnArray struct {
	encodedValues   []byte
	firstValueBytes int // length of the first value, including its length field
	hasNulls        bool
	valuesDiffer    bool // two rows have different values
}

// arrayHeaderBytes is the length in bytes of an array's header: dimensions, null flag, element type, length
// and lower bound.
const arrayHeaderBytes = 20

// Limits of the number and the size of the rows that one statement writes.
const (
	maxRowsPerStatement     = 250
	maxRowBytesPerStatement = 256 << 10
)

// columnTypeNames maps the type OIDs of columns that a rowBatch supports to the types' names.
var columnTypeNames = map[uint32]string{int8OID: "bigint", textOID: "text", byteaOID: "bytea"}

// newRowBatch returns an empty collection of rows for a statement that writes one row. The types of its
// arguments must be known.
func newRowBatch(s *preparedStatement) *rowBatch {
	words := strings.Fields(s.sql)
	r := &rowBatch{singleRowStatement: s, columns: make([]columnArray, len(s.argumentTypes)),
		updatedKeys: map[int64]struct{}{}, isUpdate: words[0] == "UPDATE", table: words[2]}
	if r.isUpdate {
		r.table = words[1]
	}
	// At least one column must be an array, because the array's length is the number of rows.
	r.columns[len(r.columns)-1].valuesDiffer = true
	return r
}

// ensureMultiRowStatement returns the statement that writes all rows.
func (r *rowBatch) ensureMultiRowStatement() *preparedStatement {
	if r.multiRowStatement != nil {
		return r.multiRowStatement
	}
	var arrayArguments, names, values []string
	for i, oid := range r.singleRowStatement.argumentTypes {
		n := strconv.Itoa(i + 1)
		if r.columns[i].valuesDiffer {
			arrayArguments, names, values = append(arrayArguments, "$"+n+"::"+columnTypeNames[oid]+"[]"), append(names, "c"+n),
				append(values, "given.c"+n)
		} else {
			values = append(values, "$"+n+"::"+columnTypeNames[oid])
		}
	}
	given := " FROM unnest(" + strings.Join(arrayArguments, ", ") + ") AS given(" + strings.Join(names, ", ") + ")"
	text := ""
	if r.isUpdate {
		set, where, _ := strings.Cut(placeholderPattern.ReplaceAllStringFunc(r.singleRowStatement.sql, func(a string) string {
			n, _ := strconv.Atoi(a[1:])
			return values[n-1]
		}), " WHERE ")
		text = set + given + " WHERE " + where
	} else {
		into, _, _ := strings.Cut(r.singleRowStatement.sql, "VALUES")
		text = into + "SELECT " + strings.Join(values, ", ") + given
	}
	r.multiRowStatement = &preparedStatement{sql: text, mayWrite: true}
	return r.multiRowStatement
}

var placeholderPattern = regexp.MustCompile(`\$[0-9]+`)

// recordPrepareReply records the server's reply that a statement is prepared. The reply contains the types of the
// arguments.
func (s *preparedStatement) recordPrepareReply(reply any) {
	s.isPrepared = true
	description, described := reply.(*pgconn.StatementDescription)
	if !described || !s.writesOneRow {
		return
	}
	for _, oid := range description.ParamOIDs {
		if columnTypeNames[oid] == "" {
			return
		}
	}
	s.argumentTypes = description.ParamOIDs
}

// addRow adds a row. The arguments must have the types that the statement expects.
func (r *rowBatch) addRow(args []any) error {
	for i, a := range args {
		c := &r.columns[i]
		if r.rowCount == 0 {
			c.encodedValues, c.hasNulls = append(c.encodedValues[:0], make([]byte, arrayHeaderBytes)...), false
		}
		start := len(c.encodedValues)
		switch a := a.(type) {
		case int64:
			c.encodedValues = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(c.encodedValues, 8), uint64(a))
		case string:
			a = CleanTextForPostgres(a)
			c.encodedValues = append(binary.BigEndian.AppendUint32(c.encodedValues, uint32(len(a))), a...)
		case []byte:
			c.encodedValues = append(binary.BigEndian.AppendUint32(c.encodedValues, uint32(len(a))), a...)
		case nil:
			c.encodedValues, c.hasNulls = binary.BigEndian.AppendUint32(c.encodedValues, nullLengthField), true
		default:
			n, isInteger := database.IntegerArgument(a)
			if !isInteger {
				return unsupportedArgumentError(i, r.singleRowStatement.sql, a)
			}
			c.encodedValues = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(c.encodedValues, 8), uint64(n))
		}
		if r.rowCount == 0 {
			c.firstValueBytes = len(c.encodedValues) - start
		} else if !c.valuesDiffer && !bytes.Equal(c.encodedValues[start:],
			c.encodedValues[arrayHeaderBytes:arrayHeaderBytes+c.firstValueBytes]) {
			c.valuesDiffer, r.multiRowStatement = true, nil
		}
		r.valueBytes += len(c.encodedValues) - start
	}
	r.rowCount++
	return nil
}

// nullLengthField is the length field of a NULL value.
const nullLengthField = math.MaxUint32

// arrayArguments returns the arguments of the statement that writes all rows. They are valid only until the next row is
// added.
func (r *rowBatch) arrayArguments() (values [][]byte, formats []int16) {
	for i := range r.columns {
		c := &r.columns[i]
		value := c.encodedValues
		if c.valuesDiffer {
			head := binary.BigEndian.AppendUint32(value[:0], 1)
			hasNulls := uint32(0)
			if c.hasNulls {
				hasNulls = 1
			}
			head = binary.BigEndian.AppendUint32(head, hasNulls)
			head = binary.BigEndian.AppendUint32(head, r.singleRowStatement.argumentTypes[i])
			head = binary.BigEndian.AppendUint32(head, uint32(r.rowCount))
			binary.BigEndian.AppendUint32(head, 1)
		} else if value = value[arrayHeaderBytes+4 : arrayHeaderBytes+c.firstValueBytes]; c.hasNulls {
			value = nil
		}
		values, formats = append(values, value), append(formats, 1)
	}
	return values, formats
}

func (r *rowBatch) removeAllRows() {
	clear(r.updatedKeys)
	r.rowCount, r.valueBytes = 0, 0
}

// WriteRow implements database.Conn. It collects the row, and sends it later together with others. The order
// of rows is kept within a table, but not between tables.
func (c *Conn) WriteRow(sql string, args ...any) error {
	s := c.findOrAddStatement(sql)
	s.writesOneRow = true
	if c.releaseTxContext != nil && !s.isPrepared {
		if err := c.prepareStatement(s); err != nil {
			return err
		}
	}
	if c.releaseTxContext == nil || s.argumentTypes == nil { // no transaction, or the argument types are not supported
		return c.Exec(sql, args...)
	}
	return c.runInPipeline(func() error {
		if s.unsentRows == nil {
			s.unsentRows = newRowBatch(s)
		}
		r := s.unsentRows
		key, twice := int64(0), false
		if r.isUpdate {
			key = args[len(args)-1].(int64)
			_, twice = r.updatedKeys[key]
		}
		if before := c.unsentRowsByTable[r.table]; before != nil && (before != s || twice) {
			if err := c.sendCollectedTableRows(r.table); err != nil {
				return err
			}
		}
		had := r.valueBytes
		if err := r.addRow(args); err != nil {
			return err
		}
		if r.isUpdate {
			r.updatedKeys[key] = struct{}{}
		}
		c.unsentRowsByTable[r.table], c.hasWrittenSinceBegin = s, true
		c.sentArgumentBytes += int64(r.valueBytes - had)
		if r.rowCount >= maxRowsPerStatement || r.valueBytes >= maxRowBytesPerStatement {
			if err := c.sendCollectedTableRows(r.table); err != nil {
				return err
			}
			return c.sendSync() // the server processes these rows while the caller collects more rows
		}
		return nil
	})
}

// prepareStatement prepares a statement and waits for the types of its arguments.
func (c *Conn) prepareStatement(s *preparedStatement) error {
	return c.runInPipeline(func() error {
		c.sendPrepare(s)
		_, err := c.flushAndReadReplies()
		return err
	})
}

func (c *Conn) sendCollectedTableRows(table string) error {
	s := c.unsentRowsByTable[table]
	delete(c.unsentRowsByTable, table)
	r := s.unsentRows
	values, formats := r.arrayArguments()
	c.unansweredArgumentBytes += r.valueBytes
	c.sendValues(r.ensureMultiRowStatement(), values, formats)
	r.removeAllRows()
	return c.limitUnreadReplies()
}

// sendCollectedRows sends the collected rows of all tables.
func (c *Conn) sendCollectedRows() error {
	for table := range c.unsentRowsByTable {
		if err := c.sendCollectedTableRows(table); err != nil {
			return err
		}
	}
	return nil
}

// discardCollectedRows discards the rows that were collected but not sent, because the transaction ends
// without them.
func (c *Conn) discardCollectedRows() {
	for table, s := range c.unsentRowsByTable {
		s.unsentRows.removeAllRows()
		delete(c.unsentRowsByTable, table)
	}
}
