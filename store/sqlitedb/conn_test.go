package sqlitedb

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/store/database"
)

// Values of every type and size are read as they were written. A method of Row returns the zero value if
// the value has another type.
func TestQueryReturnsStoredValuesUnchanged(t *testing.T) {
	c, err := Open(filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	type value struct {
		given any
		kind  string
		num   int64
		text  string
	}
	large := strings.Repeat("wide ", 100_000)
	for _, v := range []value{
		{int64(-1 << 63), "integer", -1 << 63, ""}, {int64(0), "integer", 0, ""},
		{"", "text", 0, ""}, {"a\x00b", "text", 0, "a\x00b"}, {"12", "text", 0, "12"}, {large, "text", 0, large},
		{"漢", "text", 0, "漢"},
		{[]byte{}, "blob", 0, ""}, {[]byte{0, 255}, "blob", 0, "\x00\xff"}, {[]byte(large), "blob", 0, large},
		{nil, "null", 0, ""},
	} {
		rows := 0
		err := c.Query(func(r database.Row) (bool, error) {
			rows++
			if got := (value{v.given, r.Text(1), r.Int64(0), r.Text(0)}); got.kind != v.kind || got.num != v.num ||
				got.text != v.text {
				t.Errorf("%.20q: got %s, %d, %.20q", v.given, got.kind, got.num, got.text)
			}
			if r.Text(3) != "after" {
				t.Errorf("after %.20q: got the text %q, want after", v.given, r.Text(3))
			}
			return true, nil
		}, `SELECT ?1, typeof(?1), ?2, ?3`, v.given, int64(1), "after")
		if err != nil || rows != 1 {
			t.Errorf("%.20q: %d rows, %v", v.given, rows, err)
		}
	}
	if err := c.Exec(`SELECT ?`, "small"); err != nil || c.argumentMemorySize != maxKeptArgumentMemory {
		t.Errorf("room for %d bytes is kept, %v", c.argumentMemorySize, err)
	}
}

// A failed statement reports SQLite's error code and text, and can be executed again.
func TestFailedStatementExplainsErrorAndRunsAgain(t *testing.T) {
	c, err := Open(filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Exec(`CREATE TABLE t (a INTEGER PRIMARY KEY CHECK (a > 0))`); err != nil {
		t.Fatal(err)
	}
	insert := func(a any) (int64, error) { return c.ExecRowsAffected(`INSERT INTO t VALUES (?)`, a) }
	for a, code := range map[int64]int{0: sqlite3.SQLITE_CONSTRAINT_CHECK, 1: 0, -1: sqlite3.SQLITE_CONSTRAINT_CHECK,
		2: 0} {
		n, err := insert(a)
		var e *Error
		if errors.As(err, &e) && e.Code != code || err == nil && (code != 0 || n != 1) {
			t.Errorf("%d: got %d, %v, want code %d", a, n, err, code)
		}
	}
	if _, err := insert("x"); err == nil || !strings.Contains(err.Error(), "datatype mismatch") ||
		!strings.Contains(err.Error(), "SQLITE_MISMATCH") {
		t.Errorf("a word for a number: got %v", err)
	}
	if err := c.Exec(`INSERT INTO nowhere VALUES (1)`); err == nil ||
		!strings.Contains(err.Error(), "no such table: nowhere") {
		t.Errorf("no such table: got %v", err)
	}
	if err := c.Exec(`SELECT ?, ?`, int64(1)); err == nil {
		t.Error("a missing argument was taken")
	}
	if err := c.Exec(`SELECT ?`, 1.5); err == nil {
		t.Error("a float64 was taken, which no statement uses")
	}
	stop := errors.New("enough")
	if err := c.Query(func(database.Row) (bool, error) { return true, stop }, `SELECT a FROM t`); err != stop {
		t.Errorf("got %v, want what the reader said", err)
	}
	if n, err := c.QueryNumber(`SELECT count(*) FROM t`); n != 2 || err != nil {
		t.Errorf("got %d rows, %v, want 2", n, err)
	}
}
