package rules

import (
	"errors"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Edge is an undecided dependency: the job Child waits for a parent. When the parent ends or is removed, the
// edge is decided, which means that its status is then satisfied or broken. See docs/decisions/0020.
type Edge struct {
	ID        int64
	Child     int64
	Condition queue.DependencyCondition
	OnFailure queue.OnDependencyFailure
}

// ParentChange records that a parent has ended in State, was removed (State 0), or runs again (Rerun). It
// applies to the parent's edges with ids up to LastEdgeID, which must still be decided or, for Rerun, made
// undecided. In this package, a ParentChange is called a note.
type ParentChange struct {
	ID         int64
	Parent     int64
	State      queue.State
	LastEdgeID int64
}

// Rerun is the value of ParentChange.State for a parent that runs again. Dependants that were cancelled
// because of the parent wait for it a second time.
const Rerun = ^queue.State(0)

// MaxParentChanges is how many notes one parent may have before its edges are decided. Otherwise a user who
// retries a job many times could store any number of notes.
const MaxParentChanges = 8

// addParentChange adds a note for the dependants of a job; see ParentChange. The job's previous note decides
// the edges that existed when it was added, so the new note applies only to later edges. But if one of the
// two notes is a Rerun, the new note applies to all edges. If a Rerun would exceed MaxParentChanges, the last
// Rerun note is extended to all current edges instead, and the notes after it are deleted.
func (r *Rules) addParentChange(j *Job, state queue.State) {
	if !r.tx.HasEdges() {
		return
	}
	n, newest, err := r.tx.CountParentChanges(j.Seq)
	r.recordErr(err)
	after := int64(0)
	switch {
	case n > 0 && state != Rerun && newest.State != Rerun:
		after = newest.LastEdgeID
	case n >= MaxParentChanges && state == Rerun:
		if found, err := r.tx.ExtendRerunChange(j.Seq); r.failed(err) || found {
			return
		}
	}
	r.recordErr(r.tx.AddParentChange(j.Seq, j.UID, state, after))
}

// maxEdgesPerTx limits the edges that are decided in one transaction. While the edges of a job with 100,000
// dependants were decided, other commits waited 8 ms with this limit, and 20 ms with a limit of 250.
const maxEdgesPerTx = 50

// DecideDependants decides a limited number of edges (dependencies) of parents that have ended, and makes
// edges of parents that run again undecided. hasMore reports whether there are more such edges, which the
// next call of Promote handles.
func (r *Rules) DecideDependants() (hasMore bool, err error) {
	for remaining := maxEdgesPerTx; remaining > 0; {
		e, found, err := r.tx.NextParentChange()
		if r.failed(err) || !found {
			return false, r.err
		}
		edges, err := r.tx.EdgesToDecide(e, remaining)
		r.recordErr(err)
		done := 0
		for ; done < len(edges) && r.HookBytes < MaxHookBytes; done++ {
			r.updateEdge(&edges[done], e.State)
		}
		if done < len(edges) {
			r.tx.WakeAt(r.tx.Now())
			r.recordErr(r.tx.PostponeParentChanges(e.Parent))
			return true, r.err
		}
		if len(edges) < remaining {
			r.recordErr(r.tx.DeleteParentChange(e.ID))
		} else { // the parent has many edges, so let other parents of the user go first
			r.recordErr(r.tx.PostponeParentChanges(e.Parent))
		}
		remaining -= max(1, len(edges))
	}
	r.tx.WakeAt(r.tx.Now())
	return true, r.err
}

// updateEdge decides an edge or, if the parent runs again, makes it undecided. The child then gets the state
// that the new status of the edge requires.
func (r *Rules) updateEdge(e *Edge, parentState queue.State) {
	status := store.Satisfied
	switch {
	case parentState == Rerun:
		status = store.Unresolved
	case !e.Condition.SatisfiedBy(parentState) && e.OnFailure != queue.DependencyFailureRun:
		status = store.Broken
	}
	r.recordErr(r.tx.SetEdgeStatus(e, status))
	j, err := r.tx.Job(e.Child, ReadSummary)
	switch {
	case errors.Is(err, queue.ErrNotFound):
	case r.failed(err):
	case parentState == Rerun:
		r.reopenChild(&j)
	case j.State != queue.Blocked && j.State != queue.Held: // the child no longer waits for this edge
	case status == store.Broken:
		r.applyDependencyFailure(&j, e.OnFailure)
	default:
		r.releaseChild(&j)
	}
}

// releaseChild makes a blocked child pending if all its edges are decided. A held child stays held.
func (r *Rules) releaseChild(j *Job) {
	if j.State == queue.Held {
		return
	}
	if waits, err := r.tx.HasEdgeWithStatus(j.Seq, store.Unresolved); r.failed(err) || waits {
		return
	}
	r.restartWait(j, max(r.tx.Now(), j.RunAt))
	j.Rank = rankOf(r.tx, &j.Job)
	r.Move(j, queue.Pending, queue.EventReleased, dependencyDetail)
}

// reopenChild makes a child wait for a parent that runs again. It does this for a cancelled child only if
// this parent was the only reason for the cancellation, the child's input is still stored, and no other job
// has the child's unique key.
func (r *Rules) reopenChild(j *Job) {
	if j.State != queue.Cancelled || j.Reason != queue.ReasonDependency || j.InputRemoved != 0 {
		return
	}
	if broken, err := r.tx.HasEdgeWithStatus(j.Seq, store.Broken); r.failed(err) || broken {
		return
	}
	if _, taken := r.successorWithKey(j); taken {
		return
	}
	r.restartWait(j, r.tx.Now())
	r.applyDeclaredLimits(j)
	r.addParentChange(j, Rerun)
	r.Move(j, queue.Blocked, queue.EventRetried, dependencyDetail)
}

// applyDependencyFailure cancels or holds a job because one of its dependencies is broken. onFailure is the
// job's setting for this case.
func (r *Rules) applyDependencyFailure(j *Job, onFailure queue.OnDependencyFailure) {
	switch {
	case onFailure == queue.DependencyFailureCancel:
		j.Reason = queue.ReasonDependency
		r.Move(j, queue.Cancelled, queue.EventCancelled, dependencyDetail)
	case j.State != queue.Held:
		j.Reason = queue.ReasonDependency
		r.Move(j, queue.Held, queue.EventHeld, dependencyDetail)
	}
}

var dependencyDetail = []byte(`{"reason":"dependency"}`)
