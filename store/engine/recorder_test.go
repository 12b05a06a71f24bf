package engine

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

var defaultRankOrder = queue.RankPolicy{Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByTime,
	AgingInterval: time.Minute}

// newDraft returns a valid draft, changed by the given functions.
func newDraft(changes ...func(*queue.Job)) queue.Job {
	j := queue.Job{Queue: "default", Priority: 5, MaxAttempts: 4, State: queue.Pending, ExitCode: -1,
		ExecutionSettings: queue.ExecutionSettings{Command: "true", Shell: "/bin/sh -c", OnLost: queue.OnLostRetry}}
	for _, f := range changes {
		f(&j)
	}
	return j
}

func openStore(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{Dir: dir, RankOrder: defaultRankOrder})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// enqueue stores n jobs in one request.
func enqueue(t *testing.T, s *Store, n int) store.Receipt {
	t.Helper()
	drafts := make([]queue.Job, n)
	for i := range drafts {
		drafts[i] = newDraft()
	}
	r, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// No statement of the store reads a whole table of jobs, attempts or events, or sorts rows, because that
// would be slow with many jobs. The test checks every statement in the source.
func TestNoSQLStatementScansOrSorts(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	enqueue(t, s, 1)
	stageBatchJobs(t, s, "a", 1, true)
	stageBatchJobs(t, s, "z", 1, true)                                     // opening the store again discards this batch
	_, err := s.Enqueue(t.Context(), store.EnqueueRequest{BatchName: "a"}) // opening the store again completes this batch
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir)
	callEveryOperation(t, s)
	holdDamagedJob(t, s)
	dropDamagedBatch(t, s)
	detachDamagedFrame(t, s)
	stageBatchJobs(t, s, "i", 1, true)
	_, err = s.Enqueue(t.Context(), store.EnqueueRequest{BatchName: "i"})
	if err == nil {
		_, err = s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(func(j *queue.Job) {
			j.DependsOn = []queue.Dependency{{ParentID: "i-0", Condition: queue.ParentEnded}}
		})}})
	}
	if err != nil {
		t.Fatal(err)
	}
	var statements []string
	var plans []string
	err = s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
		for q := range s.conn.PreparedStmts {
			statements = append(statements, q)
		}
		for _, c := range s.readConns {
			for q := range c.PreparedStmts {
				statements = append(statements, q)
			}
		}
		for _, q := range statements {
			verb, _, _ := strings.Cut(q, " ")
			// Skip migrations, because they run once, before any client waits.
			migrates := slices.ContainsFunc(database.SchemaMigrations, func(m []string) bool { return slices.Contains(m, q) })
			if migrates || !strings.Contains("SELECT UPDATE DELETE INSERT", verb) {
				continue
			}
			err := tx.Query(func(r database.Row) (bool, error) {
				plans = append(plans, r.Text(3)+" <- "+q)
				return true, nil
			}, `EXPLAIN QUERY PLAN `+q, make([]any, strings.Count(q, "?"))...)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, plan := range plans {
		for _, bad := range []string{"SCAN jobs <-", "SCAN jobs USING INDEX jobs_state", "SCAN jobs USING INDEX jobs_id",
			"SCAN attempts", "SCAN events", "SCAN schedule", "TEMP B-TREE"} {
			if strings.Contains(plan, bad) {
				t.Errorf("%s", plan)
			}
		}
	}
	if len(plans) < 30 {
		t.Errorf("got %d plans only", len(plans))
	}
	for _, q := range sqlStatementsInSource(t) {
		if !strings.Contains(strings.Join(statements, "\n"), q) {
			t.Errorf("a statement of the source was not examined: %s", q)
		}
	}
}

// sqlStatementsInSource returns all SQL statements in the source, except the schema.
func sqlStatementsInSource(t *testing.T) (list []string) {
	files, err := filepath.Glob("*.go")
	for _, other := range []string{"reads", "sqlite", "sqlitedb"} {
		more, err2 := filepath.Glob("../" + other + "/*.go")
		files, err = append(files, more...), errors.Join(err, err2)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		name := filepath.Base(path)
		// Skip files whose statements this test need not check: backup.go reads a copy, so no client waits for
		// it, and nodes.go is only for a database with several nodes.
		if strings.HasSuffix(name, "_test.go") || slices.Contains([]string{"backup.go", "schema.go", "nodes.go"}, name) {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(lit.Value, "`") {
				text, err := strconv.Unquote(lit.Value)
				for _, verb := range []string{"SELECT ", "UPDATE ", "DELETE ", "INSERT ", " FROM ", "WHERE "} {
					if err == nil && strings.HasPrefix(text, verb) {
						list = append(list, text)
						break
					}
				}
			}
			return true
		})
	}
	return list
}
