package postgres

import (
	"errors"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/test/pgserver"
)

// separateServerConn returns a connection to the node's server that the node does not use.
func separateServerConn(t *testing.T, s *Store) *pgdb.Conn {
	t.Helper()
	c, err := pgdb.Connect(t.Context(), s.connConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// A node writes the rows of ended attempts while another node still holds the writer lock. If that node
// writes one of the same rows, as in a takeover, the server resolves the deadlock, and both nodes continue.
func TestPrewriteHappensBeforeTheWriterLock(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	enqueueOnNode(t, a, newDraft(), newDraft())
	jobs := claimOnNode(t, a, 2)
	held, looks := separateServerConn(t, b), separateServerConn(t, b)
	for i, what := range []string{`SELECT one FROM meta`, `UPDATE jobs SET updated_at = updated_at WHERE seq = 2`} {
		if err := errors.Join(held.Exec(`BEGIN`), held.Exec(`SELECT one FROM meta FOR UPDATE`)); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := a.ReportAndClaim(t.Context(), store.LeaseReport{Settlements: []store.Settlement{completedSettlementOn(a,
				&jobs[i])}})
			ended <- err
		}()
		free := int64(1)
		for begin := time.Now(); free != 0 && time.Since(begin) < 10*time.Second; {
			var err error
			if free, err = looks.QueryNumber(
				`SELECT count(*) FROM (SELECT 1 FROM jobs WHERE seq = ? FOR UPDATE SKIP LOCKED) AS free`,
				jobs[i].Seq); err != nil {
				t.Fatal(err)
			}
		}
		if free != 0 {
			t.Error("the row of a job that has ended is not written while another node has the turn")
		}
		held.Exec(what) // may deadlock with node a; the server then aborts one of the two transactions
		held.Exec(`ROLLBACK`)
		if err := <-ended; err != nil {
			t.Errorf("after %s: %v", what, err)
		}
		if j, err := b.GetJob(t.Context(), jobs[i].ID); err != nil || j.State != queue.Completed {
			t.Errorf("after %s: %v, %v", what, j.State, err)
		}
	}
}

// A node may remove outputs of a job that another node runs. There is no deadlock, because the other node
// locks the row of such a job only after it has got the writer lock.
func TestTrimDoesNotDeadlockWithPrewrite(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	enqueueOnNode(t, a, newDraft(func(j *queue.Job) { j.MaxAttempts = 5 }))
	j := claimOnNode(t, a, 1)[0]
	failed := completedSettlementOn(a, &j)
	failed.Decision = queue.AttemptDecision{NextState: queue.Failed, RecordsAttempt: true, CountsTowardMaxAttempts: true}
	failed.Attempt.Output = []byte("its first output")
	if _, err := a.ReportAndClaim(t.Context(), store.LeaseReport{Settlements: []store.Settlement{failed}}); err != nil {
		t.Fatal(err)
	}
	j = claimOnNode(t, a, 1)[0]
	claimOnNode(t, b, 1) // after this claim, both nodes know of each other
	claimOnNode(t, a, 1)
	looks, ended, free := separateServerConn(t, b), make(chan error, 1), int64(0)
	err := b.RunAndCommit(t.Context(), engine.UrgentClass, func(tx *engine.Tx) error {
		go func() {
			_, err := a.ReportAndClaim(t.Context(), store.LeaseReport{Settlements: []store.Settlement{completedSettlementOn(a,
				&j)}})
			ended <- err
		}()
		waits, err := int64(0), error(nil)
		for begin := time.Now(); waits == 0 && err == nil && time.Since(begin) < 10*time.Second; {
			waits, err = looks.QueryNumber(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
				AND wait_event_type = 'Lock' AND query LIKE '%meta FOR UPDATE'`)
		}
		if err != nil || waits == 0 {
			return errors.Join(err, errors.New("the other node does not wait for the writer lock"))
		}
		free, err = looks.QueryNumber(
			`SELECT count(*) FROM (SELECT 1 FROM jobs WHERE seq = ? FOR UPDATE SKIP LOCKED) AS free`,
			j.Seq)
		return errors.Join(err, tx.TrimUserData(0, tx.UserCounts(0).UsedBytes-1))
	})
	if err := errors.Join(err, <-ended); err != nil {
		t.Fatal(err)
	}
	if free != 1 {
		t.Error("the row of a job with outputs is locked while another node holds the writer lock")
	}
	got, err := b.GetJob(t.Context(), j.ID)
	if err != nil || got.State != queue.Completed || got.OutputBytes != 0 || got.StartedAttempts != 2 {
		t.Errorf("the job is %v with %d bytes of outputs and %d runs, %v", got.State, got.OutputBytes, got.StartedAttempts,
			err)
	}
}

// A node writes the row of an ended attempt before it holds the writer lock. If another node then changes the
// lease of that job, the first node must not read the values that it has written as the current ones.
func TestPrewrittenRowIsNotTakenAsStored(t *testing.T) {
	for _, output := range []string{"", "its output"} {
		url := pgserver.SharedServer(t).CreateDatabase(t)
		a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
		parent := enqueueOnNode(t, a, newDraft(func(j *queue.Job) { j.MaxAttempts = 5 }))[0]
		enqueueOnNode(t, a, newDraft(func(j *queue.Job) {
			j.ID, j.State, j.DependsOn = "child", queue.Blocked,
				[]queue.Dependency{{ParentSeq: parent, Condition: queue.ParentCompleted}}
		}))
		j := claimOnNode(t, a, 1)[0]
		failed := completedSettlementOn(a, &j)
		failed.Decision, failed.Attempt.ExitCode = queue.AttemptDecision{NextState: queue.Failed, RecordsAttempt: true,
			CountsTowardMaxAttempts: true}, 1
		if _, err := a.ReportAndClaim(t.Context(), store.LeaseReport{Settlements: []store.Settlement{failed}}); err != nil {
			t.Fatal(err)
		}
		j = claimOnNode(t, a, 1)[0]
		reportJobStarted(t, a, &j)
		claimOnNode(t, b, 1) // after this claim, both nodes know of each other
		claimOnNode(t, a, 1)
		if err := b.RecordJobPause(t.Context(), store.JobPauseRequest{Lease: j.Lease(), Paused: true}); err != nil {
			t.Fatal(err)
		}
		end := completedSettlementOn(a, &j)
		end.Decision.CountsTowardMaxAttempts, end.Attempt.Output = true, []byte(output)
		if _, err := a.ReportAndClaim(t.Context(), store.LeaseReport{Settlements: []store.Settlement{end}}); err != nil {
			t.Fatal(err)
		}
		got, err := a.GetJob(t.Context(), j.ID)
		list, err2 := a.AttemptHistory(t.Context(), j.Seq, 0, 9)
		child, err3 := a.GetJob(t.Context(), "child")
		if err := errors.Join(err, err2, err3); err != nil {
			t.Fatal(err)
		}
		if got.State != queue.Completed || got.StartedAttempts != 2 || got.OutputBytes != int64(len(output)) ||
			len(list) != 2 ||
			child.State != queue.Pending || a.Counts().JobsByState[queue.Processing] != 0 {
			t.Errorf("after an output of %q: %v with %d runs, %d bytes and %d attempts; the child is %v, and %d run", output,
				got.State, got.StartedAttempts, got.OutputBytes, len(list), child.State, a.Counts().JobsByState[queue.Processing])
		}
	}
}

// If an attempt has no row in the table attempts, because the job's row contains it, the attempt still names
// its node after the node was removed.
func TestAttemptInJobRowNamesRemovedNode(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	enqueueOnNode(t, a, newDraft())
	j := claimOnNode(t, a, 1)[0]
	e := completedSettlementOn(a, &j)
	e.Decision.CountsTowardMaxAttempts, e.Attempt.Worker, e.Attempt.Node = true, "1/1", "the first a"
	_, err := a.ReportAndClaim(t.Context(), store.LeaseReport{Settlements: []store.Settlement{e}})
	expireNodeLease(t, b, "a")
	_, err2 := b.TakeOverLeases(t.Context())
	err3 := b.RemoveNode(t.Context(), "a")
	names, err4 := b.LastNodeNames(t.Context(), []int64{j.Seq})
	if err := errors.Join(err, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	if names[j.Seq] != "the first a" {
		t.Errorf("the attempt ran on node %q", names[j.Seq])
	}
}
