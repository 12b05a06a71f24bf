package pgdb

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/test/pgserver"
)

func TestMain(m *testing.M) {
	code := m.Run()
	pgserver.StopSharedServer()
	os.Exit(code)
}

// connectTo returns a connection to a database. It is closed when the test ends.
func connectTo(t *testing.T, url string) *Conn {
	t.Helper()
	config, err := ParseDatabaseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Connect(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Rows that one statement writes together have the same contents as rows written one by one, with and without
// a pooler. After a rollback, none of them is stored.
func TestBatchedRowsEqualSingleWrites(t *testing.T) {
	p := pgserver.SharedServer(t)
	url := p.CreateDatabase(t)
	for name, of := range map[string]string{"server": url,
		"pooler": strings.Replace(url, "?", "?pool_mode=transaction&", 1)} {
		t.Run(name, func(t *testing.T) { checkBatchedWrites(t, of) })
	}
}

// The server skips statements after a failed one. A statement that it should prepare, but has skipped, is
// prepared when it is sent for the second time.
func TestStatementsSkippedAfterErrorArePreparedAgain(t *testing.T) {
	p := pgserver.SharedServer(t)
	url := p.CreateDatabase(t)
	for name, of := range map[string]string{"server": url,
		"pooler": strings.Replace(url, "?", "?pool_mode=transaction&", 1)} {
		c := connectTo(t, of)
		if err := c.ExecScript(t.Context(),
			`CREATE SCHEMA IF NOT EXISTS queuectl; DROP TABLE IF EXISTS queuectl.a; CREATE TABLE queuectl.a (k BIGINT PRIMARY KEY, n BIGINT)`); err != nil {
			t.Fatal(err)
		}
		each := func(database.Row) (bool, error) { return true, nil }
		for i, fails := range []func() error{
			func() error {
				return c.QueryAll([]database.Query{{HandleRow: each, SQL: `SELECT 1 / 0`}, {HandleRow: each, SQL: `SELECT 2`}})
			},
			func() error {
				err := c.Begin()
				for k := range 3 {
					err = cmp.Or(err, c.Exec(`INSERT INTO a (k, n) VALUES ($1, 7)`, int64(k/2)))
				}
				err = cmp.Or(err, c.Query(each, `SELECT 2`))
				return cmp.Or(err, c.Commit())
			},
		} {
			if err := fails(); err == nil {
				t.Fatalf("%s, %d: nothing failed", name, i)
			}
			c.Rollback()
			if err := c.Query(each, `SELECT 2`); err != nil {
				t.Errorf("%s, %d: %v", name, i, err)
			}
			if err := c.Exec(`INSERT INTO a (k, n) VALUES ($1, 7)`, int64(10+i)); err != nil {
				t.Errorf("%s, %d: %v", name, i, err)
			}
			if err := c.Begin(); err != nil {
				t.Fatal(err)
			}
			for k := range 3 {
				if err := c.Exec(`INSERT INTO a (k, n) VALUES ($1, 7)`, int64(20+10*i+k)); err != nil {
					t.Errorf("%s, %d: %v", name, i, err)
				}
			}
			if err := c.Commit(); err != nil {
				t.Errorf("%s, %d: %v", name, i, err)
			}
		}
	}
}

// checkBatchedWrites writes random rows with WriteRow, and checks that the tables then contain these rows.
func checkBatchedWrites(t *testing.T, url string) {
	c := connectTo(t, url)
	if err := c.ExecScript(t.Context(),
		`CREATE SCHEMA IF NOT EXISTS queuectl; DROP TABLE IF EXISTS queuectl.a, queuectl.b; CREATE TABLE queuectl.a (k BIGINT PRIMARY KEY, n BIGINT, s TEXT, d BYTEA); CREATE TABLE queuectl.b (k BIGINT PRIMARY KEY, n BIGINT, s TEXT, d BYTEA)`); err != nil {
		t.Fatal(err)
	}
	dice := rand.New(rand.NewPCG(1, 2))
	texts := []any{nil, "", "a", `{"a, \ b"}`, "é\x00z", strings.Repeat("long ", 1000)}
	blobs := []any{nil, []byte{}, []byte("\x00\xff"), []byte("abc")}
	want := map[string]string{}
	read := func() map[string]string {
		got := map[string]string{}
		for _, table := range []string{"a", "b"} {
			err := c.Query(func(r database.Row) (bool, error) {
				got[fmt.Sprint(table, r.Int64(0))] = fmt.Sprintf("%v %q %q", r.Value(1), r.Value(2), r.Value(3))
				return true, nil
			}, `SELECT k, n, s, d FROM `+table)
			if err != nil {
				t.Fatal(err)
			}
		}
		return got
	}
	for round := range 30 {
		if err := c.Begin(); err != nil {
			t.Fatal(err)
		}
		held := maps.Clone(want)
		alike := round%3 == 0 // all rows have the same value in some columns
		for range dice.IntN(400) {
			table, k := []string{"a", "b"}[dice.IntN(2)], dice.Int64N(300)
			var n any = dice.Int64N(3)
			s, d := texts[dice.IntN(len(texts))], blobs[dice.IntN(len(blobs))]
			if alike {
				n, s, d = int64(5), texts[2], blobs[0]
			}
			name := fmt.Sprint(table, k)
			var err error
			if _, there := held[name]; there {
				err = c.WriteRow(`UPDATE `+table+` SET n = ?, s = ?, d = ? WHERE k = ?`, n, s, d, k)
			} else {
				err = c.WriteRow(`INSERT INTO `+table+` (k, n, s, d) VALUES (?, ?, ?, ?)`, k, n, s, d)
			}
			if text, is := s.(string); is {
				s = CleanTextForPostgres(text)
			}
			held[name] = fmt.Sprintf("%v %q %q", n, s, d)
			if err == nil && dice.IntN(40) == 0 { // check that a query sees the rows that were collected before it
				var n int64
				n, err = c.QueryNumber(`SELECT count(*) FROM ` + table)
				for name := range held {
					if strings.HasPrefix(name, table) {
						n--
					}
				}
				if n != 0 {
					t.Fatalf("%d rows are seen too many", n)
				}
			}
			if err == nil && dice.IntN(60) == 0 {
				delete(held, name)
				err = c.Exec(`DELETE FROM `+table+` WHERE k = ?`, k)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if dice.IntN(4) == 0 {
			c.Rollback()
		} else {
			if err := c.Commit(); err != nil {
				t.Fatal(err)
			}
			want = held
		}
		if got := read(); !maps.Equal(got, want) {
			for name := range want {
				if got[name] != want[name] {
					t.Errorf("%s is %.60s, want %.60s", name, got[name], want[name])
				}
			}
			t.Fatalf("round %d: %d rows, want %d", round, len(got), len(want))
		}
	}
	if err := c.Begin(); err != nil {
		t.Fatal(err)
	}
	for _, k := range []int64{1000, 1001, 1000} {
		c.WriteRow(`INSERT INTO a (k, n, s, d) VALUES (?, ?, ?, ?)`, k, int64(1), "twice", []byte(nil))
	}
	if err := c.Commit(); database.ErrorKindOf(err) != database.RequestFailed {
		t.Errorf("inserting a row twice: %v", err)
	}
	c.Rollback()
	if got := read(); !maps.Equal(got, want) {
		t.Errorf("after the rollback there are %d rows, want %d", len(got), len(want))
	}
}
