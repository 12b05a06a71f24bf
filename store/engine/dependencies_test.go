package engine

import (
	"context"
	"fmt"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/rules"
)

// reviveParent creates a parent (first), a job that depends on it (second), and 300 dependants of second. It
// cancels the parent, which cancels all of them. Then it retries and holds the parent. These two transactions also
// decide edges, so some of the dependants wait again.
func reviveParent(t *testing.T, s *Store) (first, second int64) {
	t.Helper()
	after := func(parent int64) func(*queue.Job) {
		return func(j *queue.Job) {
			j.DependsOn, j.OnDependencyFailure = []queue.Dependency{{JobSeq: parent, Condition: queue.ParentCompleted}},
				queue.DependencyFailureCancel
		}
	}
	first = enqueueFor(t, s, 2, 1, func(j *queue.Job) { j.State = queue.Held })[0]
	second = enqueueFor(t, s, 7, 1, after(first))[0]
	enqueueFor(t, s, 2, 300, after(second))
	change(t, s, first, store.Change{Verb: queue.VerbCancel})
	awaitUndecided(t, s, 0)
	change(t, s, first, store.Change{Verb: queue.VerbRetry})
	change(t, s, first, store.Change{Verb: queue.VerbHold})
	return first, second
}

// awaitUndecided calls Promote until the number of notes about ended and restarted parents is at most want.
func awaitUndecided(t *testing.T, s *Store, want int64) {
	t.Helper()
	for range 100 {
		if number(t, s, `SELECT count(*) FROM ended`) <= want {
			return
		}
		if _, err := s.Promote(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	t.Errorf("%d are noted still", number(t, s, `SELECT count(*) FROM ended`))
}

// Notes about a parent say that it has ended or runs again. They are processed in order, even if the parent
// gets another uid between two notes.
func TestNotesOfAParentStayInOrder(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueueWithOwner(t, s, 7, "alice", 1)
	first, second := reviveParent(t, s)
	untilDone(t, func(ctx context.Context) (bool, error) { return s.Disown(ctx, 7, "alice") })
	if n := number(t, s, fmt.Sprintf(`SELECT count(*) FROM ended WHERE parent = %d`, second)); n != 1 {
		t.Fatalf("%d notes of the second job, so that this shows nothing", n)
	}
	change(t, s, first, store.Change{Verb: queue.VerbCancel})
	awaitUndecided(t, s, 0)
	if n := number(t, s, `SELECT count(*) FROM jobs WHERE state = 8`); n != 302 {
		t.Errorf("%d jobs are cancelled, want 302", n)
	}
}

// If a parent is cancelled and retried repeatedly, a limited number of notes about it is stored, and the last
// note decides.
func TestRepeatedRetriesStoreFewNotes(t *testing.T) {
	s := openStore(t, t.TempDir())
	first, _ := reviveParent(t, s)
	for range 20 {
		change(t, s, first, store.Change{Verb: queue.VerbCancel})
		change(t, s, first, store.Change{Verb: queue.VerbRetry})
		change(t, s, first, store.Change{Verb: queue.VerbHold})
		if n := number(t, s, `SELECT count(*) FROM ended`); n > rules.MaxParentChanges+2 {
			t.Fatalf("%d notes of two parents", n)
		}
	}
	awaitUndecided(t, s, 0)
	if n := number(t, s, `SELECT count(*) FROM jobs WHERE state = 1`); n != 301 {
		t.Errorf("%d jobs are blocked, want 301", n)
	}
}
