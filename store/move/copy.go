package move

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"strings"

	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// table describes a table of the queue's database.
type table struct {
	name       string
	columns    []string
	primaryKey []string // columns of the primary key; empty without a primary key
}

// schemaTables returns all tables of the schema except notes, whose rows describe one database and are not
// moved. It reads them from a new SQLite database in memory.
func schemaTables() (tables []table, err error) {
	c, err := sqlitedb.OpenEmptyMemoryDatabase()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	err = database.ForEachRow(c, func(r database.Row) {
		if name := r.Text(0); len(tables) == 0 || tables[len(tables)-1].name != name {
			tables = append(tables, table{name: name})
		}
		t := &tables[len(tables)-1]
		t.columns = append(t.columns, r.Text(1))
		if r.Int64(2) > 0 {
			t.primaryKey = append(t.primaryKey, r.Text(1))
		}
	}, `SELECT t.name, c.name, c.pk FROM sqlite_schema AS t, pragma_table_info(t.name) AS c
		WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite%' AND t.name <> 'notes' ORDER BY t.name, c.cid`)
	return tables, err
}

// sortColumns returns the columns by which the rows of a table are sorted.
func (t *table) sortColumns() []string {
	if len(t.primaryKey) == 0 {
		return t.columns
	}
	return t.primaryKey
}

// maxRowsPerCopyTx is the number of rows that one transaction copies at most.
const maxRowsPerCopyTx = 5000

// copyMissingRows copies the rows of all tables that the target does not have yet.
func (m *queueMove) copyMissingRows() error {
	for i := range m.tables {
		t := &m.tables[i]
		if err := m.copyTable(t); err != nil {
			return fmt.Errorf("cannot copy the table %q: %w; the queue was not moved, so run the command again", t.name, err)
		}
	}
	return nil
}

func sqlPlaceholders(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }

func (m *queueMove) copyTable(t *table) error {
	columns, by := strings.Join(t.columns, ", "), strings.Join(t.sortColumns(), ", ")
	where, args := "", []any(nil)
	// A table without a primary key is copied again from the beginning, because nothing shows which rows are
	// already copied. The table meta too: a new database already has its only row.
	if len(t.primaryKey) == 0 || t.name == "meta" {
		if err := m.targetConn.Exec(`DELETE FROM ` + t.name); err != nil {
			return err
		}
	} else {
		n, err := m.targetConn.QueryNumber(`SELECT count(*) FROM ` + t.name)
		if err == nil && n > 0 {
			_, err = database.ReadFirstRow(m.targetConn, func(r database.Row) {
				for i := range t.primaryKey {
					args = append(args, r.Value(i))
				}
			}, `SELECT `+by+` FROM `+t.name+` ORDER BY `+strings.Join(t.sortColumns(), " DESC, ")+` DESC LIMIT 1`)
			where = ` WHERE (` + by + `) > (` + sqlPlaceholders(len(args)) + `)`
			m.result.PreviouslyCopiedRows += n
		}
		if err != nil {
			return err
		}
	}
	insert := `INSERT INTO ` + t.name + ` (` + columns + `) VALUES (` + sqlPlaceholders(len(t.columns)) + `)`
	rows := int64(0)
	begun := false
	err := m.sourceConn.Query(func(r database.Row) (_ bool, err error) {
		if err := m.ctx.Err(); err != nil {
			return false, err
		}
		if !begun {
			if err := m.targetConn.Begin(); err != nil {
				return false, err
			}
			begun = true
		}
		values := make([]any, len(t.columns))
		for i := range values {
			values[i] = r.Value(i)
		}
		if err := m.targetConn.Exec(insert, values...); err != nil {
			return false, err
		}
		if rows++; rows%maxRowsPerCopyTx == 0 {
			m.reportProgress(t.name, rows)
			begun = false
			err = m.targetConn.Commit()
		}
		return true, err
	}, `SELECT `+columns+` FROM `+t.name+where+` ORDER BY `+by, args...)
	if err == nil && begun {
		err = m.targetConn.Commit()
	} else if begun {
		m.targetConn.Rollback()
	}
	m.reportProgress(t.name, rows)
	return err
}

// compareTables reads both databases again, and returns an error if any table has different rows.
func (m *queueMove) compareTables() error {
	for i := range m.tables {
		t := &m.tables[i]
		was, n, err := m.checksumTable(m.sourceConn, t)
		if err != nil {
			return err
		}
		is, copied, err := m.checksumTable(m.targetConn, t)
		if err != nil {
			return err
		}
		m.result.RowCount += n
		if t.name == "jobs" {
			m.result.JobCount = n
		}
		if n != copied || was != is {
			return fmt.Errorf("the copy of table %q differs from the original (%d rows in %s, %d in %s), so the queue was "+
				"not moved; check it with queuectl doctor --verify, then try again", t.name, n, m.sourceLocation, copied,
				m.targetLocation)
		}
	}
	return nil
}

// checksumTable returns a checksum of a table's rows in order, and their number.
func (m *queueMove) checksumTable(c database.Conn, t *table) (sum [sha256.Size]byte, rowCount int64, err error) {
	h := sha256.New()
	err = c.Query(func(r database.Row) (bool, error) {
		rowCount++
		for i := range t.columns {
			addValueToHash(h, r.Value(i))
		}
		return true, m.ctx.Err()
	}, `SELECT `+strings.Join(t.columns, ", ")+` FROM `+t.name+` ORDER BY `+strings.Join(t.sortColumns(), ", "))
	h.Sum(sum[:0])
	return sum, rowCount, err
}

// addValueToHash adds a value to a checksum. It replaces the bytes in texts that a server cannot store, as the
// copy does, so that a copy on a server has the same checksum as the original.
func addValueToHash(h hash.Hash, v any) {
	if text, isText := v.(string); isText {
		v = pgdb.CleanTextForPostgres(text)
	}
	fmt.Fprintf(h, "%T %x\n", v, v) // each value is on its own line, since the hexadecimal form has no line break
}
