package sql

import (
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/storetest"
	"github.com/queuectl/queuectl/test/pgserver"
)

// usedDatabases holds the databases of the shared server that finished tests have used.
var usedDatabases = make(chan string, 64)

// emptyDatabase returns a database on the shared server without a queue. It empties a used database, or
// creates a new one.
func emptyDatabase(t *testing.T) (url string) {
	t.Helper()
	select {
	case url = <-usedDatabases:
		emptyTables(t, url)
	default:
		url = pgserver.Shared(t).Create(t)
	}
	t.Cleanup(func() { usedDatabases <- url })
	return url
}

// emptyTables resets the tables to their initial contents.
func emptyTables(t *testing.T, url string) {
	t.Helper()
	tables, err := tablesOf()
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for _, table := range tables {
		switch table.name {
		// Truncate the large tables, because deleted rows would slow down later scans.
		case "jobs", "attempts", "events", "edges", "lanes", "meta":
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
	script.WriteString(
		`DELETE FROM nodes; DELETE FROM changes; DELETE FROM asks; DELETE FROM roles; DELETE FROM submissions;`)
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

// skipUnlessServer skips a slow test, unless QUEUECTL_SERVER is set.
func skipUnlessServer(t *testing.T) *pgserver.Server {
	if os.Getenv("QUEUECTL_SERVER") == "" {
		skip.Missing(t, "long", "takes long; make server-suite runs it, and .ci/run calls that")
	}
	return pgserver.Shared(t)
}

// forgetful is a server that always sends its claim queries early. In every other transaction, it makes the
// node believe that another node has committed. The node then reloads its caches, and writes rows before it
// holds the writer lock.
type forgetful struct{ *Server }

func (f forgetful) beginTx(t *tx) error {
	if rand.IntN(2) == 0 {
		return f.Server.beginTx(t)
	}
	t.s.mem.commits--
	f.otherNodes.Store(1)
	err := f.Server.beginTx(t)
	t.s.foreignChanges.any = false // the other node's commit is invented, so no job has changed
	return err
}

// openForgetful opens a node on a forgetful server.
func openForgetful(t *testing.T, url string, order queue.Order) *Server {
	t.Helper()
	s, err := OpenServer(t.Context(), url, Options{Order: order, Node: NodeConfig{Name: "one", DirID: "one"}})
	if err != nil {
		t.Fatal(err)
	}
	s.backend, s.prefetchThreshold = forgetful{s}, 1
	return s
}

// The engine on a PostgreSQL server fulfils the contract of store.Store, even if other nodes change the
// database.
func TestConformanceOfAServer(t *testing.T) {
	skipUnlessServer(t)
	storetest.Run(t, func(t *testing.T, order queue.Order) storetest.Fixture {
		s := openForgetful(t, emptyDatabase(t), order)
		return fixture(t, s, s.engine)
	})
}

// In random walks, the engine on a server behaves like the model.
func TestWalksOfAServer(t *testing.T) {
	p := skipUnlessServer(t)
	walks(t, 1, func(t *testing.T) func(queue.Order) (store.Store, *engine) {
		url := p.Create(t)
		return func(order queue.Order) (store.Store, *engine) {
			s := openForgetful(t, url, order)
			return s, s.engine
		}
	})
}

// serverSQL translates statements into PostgreSQL's syntax.
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

// The error for an unreachable server is one line, even if the server has several addresses.
func TestUnreachableServerIsReportedInOneLine(t *testing.T) {
	config, err := readAddress("postgres://q@127.0.0.1:1,127.0.0.1:2/d")
	if err != nil {
		t.Fatal(err)
	}
	_, err = connectServer(t.Context(), config)
	if err == nil || strings.ContainsAny(err.Error(), "\n\t") || !strings.Contains(err.Error(), "127.0.0.1:1") ||
		!strings.Contains(err.Error(), "127.0.0.1:2") {
		t.Errorf("got %v", err)
	}
}
