//go:build linux || windows

package durability

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// holdReadTransaction starts a read transaction on the database from the test process. The transaction stays
// open until the test calls the returned function.
func holdReadTransaction(q *testrig.Harness) (endTransaction func()) {
	q.Helper()
	db, err := sql.Open("sqlite", "file:"+q.Path("queuectl.db")+"?mode=ro")
	if err != nil {
		q.Fatal(err)
	}
	rows, err := db.Query(`SELECT id FROM jobs`)
	if err != nil || !rows.Next() {
		q.Fatalf("read the database: %v", err)
	}
	endTransaction = func() { db.Close(); rows.Close() }
	q.Cleanup(endTransaction)
	return endTransaction
}

// While another program keeps a read transaction open, `queuectl status` says how to proceed, the log reports
// the transaction once, and jobs still run. After that program has ended, the status is "ok" again. The test
// uses a build of the program that already warns when the WAL has 4 MiB.
func TestStatusReportsAnotherProgramsReadTransaction(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	q := testrig.NewHarness(t, "failpoint")
	q.ServiceEnv = []string{"QUEUECTL_FAILPOINTS=smallwal"}
	q.StartService("--workers", "1")
	w := q.DialService()
	w.Enqueue(testrig.JSONFields{"command": "true"})
	w.Enqueue(testrig.JSONFields{"command": "true"})
	end := holdReadTransaction(q)
	big := testrig.JSONFields{"command": ": " + strings.Repeat("x", 100_000)}
	health := func() (h struct{ Health string }) {
		t.Helper()
		w.MustCall("status", nil, &h)
		return h
	}
	q.WaitUntil("status reports the long read", 20*time.Second, func() bool {
		w.Enqueue(big)
		return strings.HasPrefix(health().Health, "degraded")
	})
	if h := health().Health; !strings.Contains(h, "another program keeps reading") ||
		!strings.Contains(h, "find that program with: ") {
		t.Errorf("health is %q", h)
	}
	if r := q.RunCLI("status", "--check"); r.ExitCode != 1 {
		t.Errorf("status --check: %+v", r)
	}
	if j := w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "echo up", "priority": 10})); j.State != "completed" {
		t.Errorf("a job during the long read: %+v", j)
	}
	end()
	q.WaitUntil("the health is ok again", 20*time.Second, func() bool {
		w.Enqueue(testrig.JSONFields{"command": "true"})
		return health().Health == "ok"
	})
	if n := strings.Count(q.ReadAllLogs(), "another program keeps reading"); n != 1 {
		t.Errorf("the log reports the long read %d times", n)
	}
}
