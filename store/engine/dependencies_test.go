package engine

import (
	"context"
	"fmt"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/rules"
)

// retryCancelledParent creates a job (the parent), a job that depends on it (the child), and 300 jobs that depend on
// the child. It cancels the parent, which cancels all others. Then it retries and holds the parent, so that
// some of the others wait again. It returns the seqs of the parent and the child.
func retryCancelledParent(t *testing.T, s *Store) (parentSeq, childSeq int64) {
	t.Helper()
	after := func(parent int64) func(*queue.Job) {
		return func(j *queue.Job) {
			j.DependsOn, j.OnDependencyFailure = []queue.Dependency{{ParentSeq: parent, Condition: queue.ParentCompleted}},
				queue.DependencyFailureCancel
		}
	}
	parentSeq = enqueueForUser(t, s, 2, 1, func(j *queue.Job) { j.State = queue.Held })[0]
	childSeq = enqueueForUser(t, s, 7, 1, after(parentSeq))[0]
	enqueueForUser(t, s, 2, 300, after(childSeq))
	applyChange(t, s, parentSeq, store.JobChange{Verb: queue.VerbCancel})
	processParentChanges(t, s, 0)
	applyChange(t, s, parentSeq, store.JobChange{Verb: queue.VerbRetry})
	applyChange(t, s, parentSeq, store.JobChange{Verb: queue.VerbHold})
	return parentSeq, childSeq
}

// processParentChanges calls ApplyDueChanges until at most maxRemaining notes are left. A note says that a parent has
// ended or runs again.
func processParentChanges(t *testing.T, s *Store, maxRemaining int64) {
	t.Helper()
	for range 100 {
		if queryNumber(t, s, `SELECT count(*) FROM ended`) <= maxRemaining {
			return
		}
		if _, err := s.ApplyDueChanges(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	t.Errorf("%d are noted still", queryNumber(t, s, `SELECT count(*) FROM ended`))
}

// A note says that a parent (a job that others depend on) has ended or runs again. The notes of a parent are
// processed in order, even if the parent gets another uid between two of them.
func TestParentChangesAreProcessedInOrder(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueueWithOwner(t, s, 7, "alice", 1)
	first, second := retryCancelledParent(t, s)
	runStepUntilDone(t, func(ctx context.Context) (bool, error) { return s.DisownJobs(ctx, 7, "alice") })
	if n := queryNumber(t, s, fmt.Sprintf(`SELECT count(*) FROM ended WHERE parent = %d`, second)); n != 1 {
		t.Fatalf("%d notes about the child, want 1, so this test proves nothing", n)
	}
	applyChange(t, s, first, store.JobChange{Verb: queue.VerbCancel})
	processParentChanges(t, s, 0)
	if n := queryNumber(t, s, `SELECT count(*) FROM jobs WHERE state = 8`); n != 302 {
		t.Errorf("%d jobs are cancelled, want 302", n)
	}
}

// If a parent (a job that others depend on) is cancelled and retried many times, the store keeps a limited
// number of notes about it. The last change decides what happens to the jobs that depend on it.
func TestRepeatedRetriesStoreLimitedParentChanges(t *testing.T) {
	s := openStore(t, t.TempDir())
	first, _ := retryCancelledParent(t, s)
	for range 20 {
		applyChange(t, s, first, store.JobChange{Verb: queue.VerbCancel})
		applyChange(t, s, first, store.JobChange{Verb: queue.VerbRetry})
		applyChange(t, s, first, store.JobChange{Verb: queue.VerbHold})
		if n := queryNumber(t, s, `SELECT count(*) FROM ended`); n > rules.MaxStateChangesPerParent+2 {
			t.Fatalf("%d notes of two parents", n)
		}
	}
	processParentChanges(t, s, 0)
	if n := queryNumber(t, s, `SELECT count(*) FROM jobs WHERE state = 1`); n != 301 {
		t.Errorf("%d jobs are blocked, want 301", n)
	}
}
