//go:build linux || windows

package test

import (
	"database/sql"
	"strings"
	"testing"
	"time"
)

// holdReadTransaction starts a read transaction on the database from this process. The transaction stays open
// until the caller calls end.
func (q *queue) holdReadTransaction() (end func()) {
	q.Helper()
	db, err := sql.Open("sqlite", "file:"+q.path("queuectl.db")+"?mode=ro")
	if err != nil {
		q.Fatal(err)
	}
	rows, err := db.Query(`SELECT id FROM jobs`)
	if err != nil || !rows.Next() {
		q.Fatalf("read the database: %v", err)
	}
	end = func() { db.Close(); rows.Close() }
	q.Cleanup(end)
	return end
}

// While another program keeps a read transaction open, status says what to do about it, the log says so once,
// and jobs still run. After that program has ended, status is "ok" again. The test uses the build with
// failpoints, which warns at a WAL size of 4 MiB.
func TestAnotherProgramReadsTheDatabase(t *testing.T) {
	t.Parallel()
	q := newQueue(t, "failpoint")
	q.env = []string{"QUEUECTL_FAILPOINTS=smallwal"}
	q.start("--workers", "1")
	w := q.dial()
	w.enqueue(fields{"command": "true"})
	w.enqueue(fields{"command": "true"})
	end := q.holdReadTransaction()
	big := fields{"command": ": " + strings.Repeat("x", 100_000)}
	health := func() (h struct{ Health string }) {
		t.Helper()
		w.mustCall("status", nil, &h)
		return h
	}
	q.waitUntil("status says so", 20*time.Second, func() bool {
		w.enqueue(big)
		return strings.HasPrefix(health().Health, "degraded")
	})
	if h := health().Health; !strings.Contains(h, "another program keeps reading") ||
		!strings.Contains(h, "find that program with: ") {
		t.Errorf("health is %q", h)
	}
	if r := q.cli("status", "--check"); r.code != 1 {
		t.Errorf("status --check: %+v", r)
	}
	if j := w.waitEnded(w.enqueue(fields{"command": "echo up", "priority": 10})); j.State != "completed" {
		t.Errorf("a job meanwhile: %+v", j)
	}
	end()
	q.waitUntil("status is well again", 20*time.Second, func() bool {
		w.enqueue(fields{"command": "true"})
		return health().Health == "ok"
	})
	if n := strings.Count(q.logText(), "another program keeps reading"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
}
