package sql

import (
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/storetest"
	"github.com/queuectl/queuectl/test/pgserver"
)

// used are databases of the shared server that tests have done with.
var used = make(chan string, 64)

// emptyDatabase is a database of the shared server without a queue: one that a test has done with, emptied, or a new one.
func emptyDatabase(t *testing.T) (url string) {
	t.Helper()
	select {
	case url = <-used:
		emptyTables(t, url)
	default:
		url = pgserver.Shared(t).Create(t)
	}
	t.Cleanup(func() { used <- url })
	return url
}

// emptyTables has the tables be as they were made.
func emptyTables(t *testing.T, url string) {
	t.Helper()
	tables, err := tablesOf()
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for _, table := range tables {
		switch table.name {
		case "jobs", "attempts", "events", "edges", "lanes", "meta": // whose rows that are gone would be passed by each look
			script.WriteString("TRUNCATE " + table.name + ";")
		default:
			script.WriteString("DELETE FROM " + table.name + ";")
		}
	}
	for _, statement := range migrations[0] {
		if strings.HasPrefix(statement, "INSERT") {
			script.WriteString(statement + ";")
		}
	}
	script.WriteString(`DELETE FROM nodes; DELETE FROM changes; DELETE FROM asks; DELETE FROM roles; DELETE FROM submissions;`)
	script.WriteString(`SELECT setval(s.oid::regclass, 1, false) FROM pg_class s WHERE relkind = 'S'`)
	config, err := readAddress(url)
	if err != nil {
		t.Fatal(err)
	}
	c, err := connectServer(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if err := c.pg.Exec(t.Context(), script.String()).Close(); err != nil {
		t.Fatal(err)
	}
}

// whole skips what takes long, unless it is asked for.
func whole(t *testing.T) *pgserver.Server {
	if os.Getenv("QUEUECTL_SERVER") == "" {
		t.Skip("takes long: make server-suite runs it")
	}
	return pgserver.Shared(t)
}

// forgetful is a server whose node asks for what it will want, and finds in every other transaction that another one has changed
// something, and writes before its turn what it can.
type forgetful struct{ *Server }

func (f forgetful) enter(t *tx) error {
	if rand.IntN(2) == 0 {
		return f.Server.enter(t)
	}
	t.s.mem.commits--
	f.others.Store(1)
	err := f.Server.enter(t)
	t.s.foreign.any = false // nothing has changed in truth
	return err
}

// openForgetful is a node on a server that finds so.
func openForgetful(t *testing.T, url string, order queue.Order) *Server {
	t.Helper()
	s, err := OpenServer(t.Context(), url, Options{Order: order, Member: Member{Name: "one", Folder: "one"}})
	if err != nil {
		t.Fatal(err)
	}
	s.host, s.expects = forgetful{s}, 1
	return s
}

// A database on a server keeps the contract, though others change it too.
func TestConformanceOfAServer(t *testing.T) {
	whole(t)
	storetest.Run(t, func(t *testing.T, order queue.Order) storetest.Fixture {
		s := openForgetful(t, emptyDatabase(t), order)
		return fixture(t, s, s.engine)
	})
}

// So do the engine on a server and the model walk together.
func TestWalksOfAServer(t *testing.T) {
	p := whole(t)
	walks(t, 1, func(t *testing.T) func(queue.Order) (store.Store, *engine) {
		url := p.Create(t)
		return func(order queue.Order) (store.Store, *engine) {
			s := openForgetful(t, url, order)
			return s, s.engine
		}
	})
}

// Statements are told to a server as it writes them.
func TestServerSQL(t *testing.T) {
	for is, want := range map[string]string{
		`SELECT a FROM t INDEXED BY t_a WHERE a = ? AND b = '?'`: `SELECT a FROM t  WHERE a = $1 AND b = '?'`,
		"SELECT a FROM t INDEXED BY t_a\n\tWHERE a = ?":          "SELECT a FROM t \n\tWHERE a = $1",
		`UPDATE t SET a = ?, b = ? WHERE c = ?3`:                 `UPDATE t SET a = $1, b = $2 WHERE c = $3`,
		`SELECT 1 FROM a CROSS JOIN b ON c = ?`:                  `SELECT 1 FROM a JOIN b ON c = $1`,
	} {
		if got := serverSQL(is); strings.TrimSpace(got) != want {
			t.Errorf("%s: got %q, want %q", is, got, want)
		}
	}
}

// A server that cannot be reached is told in one line, however many addresses it has.
func TestUnreachableServerIsOneLine(t *testing.T) {
	config, err := readAddress("postgres://q@127.0.0.1:1,127.0.0.1:2/d")
	if err != nil {
		t.Fatal(err)
	}
	_, err = connectServer(t.Context(), config)
	if err == nil || strings.ContainsAny(err.Error(), "\n\t") || !strings.Contains(err.Error(), "127.0.0.1:1") || !strings.Contains(err.Error(), "127.0.0.1:2") {
		t.Errorf("got %v", err)
	}
}
