package postgres

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/pgdb"
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
	var script strings.Builder
	for _, statement := range database.Migrations[0] {
		words := strings.Fields(statement)
		if words[0] != "CREATE" || words[1] != "TABLE" {
			continue
		}
		switch table := words[2]; table {
		// Truncate the large tables, because deleted rows would slow down later scans.
		case "jobs", "attempts", "events", "edges", "lanes", "meta":
			script.WriteString("TRUNCATE " + table + ";")
		default:
			script.WriteString("DELETE FROM " + table + ";")
		}
	}
	for _, statement := range database.Migrations[0] {
		if strings.HasPrefix(statement, "INSERT") {
			script.WriteString(statement + ";")
		}
	}
	script.WriteString(
		`DELETE FROM nodes; DELETE FROM changes; DELETE FROM asks; DELETE FROM roles; DELETE FROM submissions;`)
	script.WriteString(`SELECT setval(s.oid::regclass, 1, false) FROM pg_class s WHERE relkind = 'S'`)
	config, err := pgdb.ParseAddress(url)
	if err != nil {
		t.Fatal(err)
	}
	c, err := pgdb.Connect(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.ExecScript(t.Context(), script.String()); err != nil {
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

var defaultOrder = queue.Order{Scheduling: queue.ByAging, Aging: queue.AgingTime, Interval: time.Minute}

func draft(set ...func(*queue.Job)) queue.Job {
	j := queue.Job{Queue: "default", Priority: 5, MaxAttempts: 4, State: queue.Pending, ExitCode: -1,
		Execution: queue.Execution{Command: "true", Shell: "/bin/sh -c", OnLost: queue.OnLostRetry}}
	for _, f := range set {
		f(&j)
	}
	return j
}

// completed returns the report that a job has completed.
func completed(j *queue.Job) store.Settlement {
	return store.Settlement{Lease: j.Lease(), Decision: queue.Decision{State: queue.Completed, UsesAttempt: true,
		Started: true}}
}

func ofUser(uid int) func(*queue.Job) { return func(j *queue.Job) { j.UID = uid } }

func TestMain(m *testing.M) {
	code := m.Run()
	pgserver.StopShared()
	os.Exit(code)
}
