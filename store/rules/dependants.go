package rules

import (
	"errors"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// DependencyEdge is an undecided dependency: the job ChildSeq waits for a parent. When the parent ends or is removed,
// the edge is decided, which means that its status is then satisfied or broken. See docs/decisions/0020.
type DependencyEdge struct {
	ID        int64
	ChildSeq  int64
	Condition queue.DependencyCondition
	OnFailure queue.OnDependencyFailure
}

// ParentStateChange records that a parent has ended in ParentState, was removed (ParentState 0), or runs again
// (ParentRerunState). It applies to the parent's edges with ids up to LastEdgeID. These edges must still be decided or,
// if the parent runs again, made undecided. In this package, a ParentStateChange is called a note.
type ParentStateChange struct {
	ID          int64
	ParentSeq   int64
	ParentState queue.State
	LastEdgeID  int64
}

// ParentRerunState is the value of ParentStateChange.ParentState for a parent that runs again. Dependants that were
// cancelled because of the parent wait for it a second time.
const ParentRerunState = ^queue.State(0)

// MaxStateChangesPerParent is how many notes one parent may have before its edges are decided. Otherwise a user who
// retries a job many times could store any number of notes.
const MaxStateChangesPerParent = 8

// addParentStateChange adds a note for the dependants of a job; see ParentStateChange. The job's previous note decides
// the edges that existed when it was added, so the new note applies only to later edges. But if one of the two notes
// says that the parent runs again (a Rerun note), the new note applies to all edges. If a Rerun note would exceed
// MaxStateChangesPerParent, the last Rerun note is extended to all current edges instead, and the notes after it are
// deleted.
func (r *Rules) addParentStateChange(j *Job, newParentState queue.State) {
	if !r.tx.HasEdges() {
		return
	}
	n, newest, err := r.tx.CountParentStateChanges(j.Seq)
	r.recordErr(err)
	after := int64(0)
	switch {
	case n > 0 && newParentState != ParentRerunState && newest.ParentState != ParentRerunState:
		after = newest.LastEdgeID
	case n >= MaxStateChangesPerParent && newParentState == ParentRerunState:
		if found, err := r.tx.ExtendParentRerunChange(j.Seq); r.hasFailed(err) || found {
			return
		}
	}
	r.recordErr(r.tx.AddParentStateChange(j.Seq, j.UID, newParentState, after))
}

// maxEdgesResolvedPerTx limits the edges that are decided in one transaction. While the edges of a job with 100,000
// dependants were decided, other commits waited 8 ms with this limit, and 20 ms with a limit of 250.
const maxEdgesResolvedPerTx = 50

// ResolveChangedDependencies decides a limited number of edges (dependencies) of parents that have ended, and makes
// edges of parents that run again undecided. hasMore reports whether there are more such edges, which the next call of
// ApplyDueChanges handles.
func (r *Rules) ResolveChangedDependencies() (hasMore bool, err error) {
	for remaining := maxEdgesResolvedPerTx; remaining > 0; {
		e, found, err := r.tx.NextParentStateChange()
		if r.hasFailed(err) || !found {
			return false, r.err
		}
		edges, err := r.tx.EdgesToResolve(e, remaining)
		r.recordErr(err)
		done := 0
		for ; done < len(edges) && r.HookBytesUsed < MaxHookBytesPerStep; done++ {
			r.updateEdgeStatus(&edges[done], e.ParentState)
		}
		if done < len(edges) {
			r.tx.WakeServiceAt(r.tx.Now())
			r.recordErr(r.tx.PostponeParentStateChanges(e.ParentSeq))
			return true, r.err
		}
		if len(edges) < remaining {
			r.recordErr(r.tx.DeleteParentStateChange(e.ID))
		} else { // the parent has many edges, so let other parents of the user go first
			r.recordErr(r.tx.PostponeParentStateChanges(e.ParentSeq))
		}
		remaining -= max(1, len(edges))
	}
	r.tx.WakeServiceAt(r.tx.Now())
	return true, r.err
}

// updateEdgeStatus decides an edge or, if the parent runs again, makes it undecided. The child then gets the state
// that the new status of the edge requires.
func (r *Rules) updateEdgeStatus(e *DependencyEdge, parentState queue.State) {
	status := store.Unresolved
	if parentState != ParentRerunState {
		status = resolvedStatus(e.Condition, e.OnFailure, parentState)
	}
	r.recordErr(r.tx.SetEdgeStatus(e, status))
	j, err := r.tx.Job(e.ChildSeq, ReadScopeSummary)
	switch {
	case errors.Is(err, queue.ErrNotFound):
	case r.hasFailed(err):
	case parentState == ParentRerunState:
		r.makeChildWaitAgain(&j)
	case j.State != queue.Blocked && j.State != queue.Held: // the child no longer waits for this parent
	case status == store.Broken:
		r.applyDependencyFailure(&j, e.OnFailure)
	default:
		r.releaseUnblockedChild(&j)
	}
}

// releaseUnblockedChild makes a blocked child pending if all its edges (dependencies) are decided. A held child stays
// held.
func (r *Rules) releaseUnblockedChild(j *Job) {
	if j.State == queue.Held {
		return
	}
	if waits, err := r.tx.HasEdgeWithStatus(j.Seq, store.Unresolved); r.hasFailed(err) || waits {
		return
	}
	r.restartWaitingTime(j, max(r.tx.Now(), j.RunAt))
	j.Rank = computeRank(r.tx, &j.Job)
	r.MoveToState(j, queue.Pending, queue.EventReleased, dependencyEventDetail)
}

// makeChildWaitAgain makes a child wait for a parent that runs again. It does this for a cancelled child only if
// this parent was the only reason for the cancellation, the child's input is still stored, and no other job
// has the child's unique key.
func (r *Rules) makeChildWaitAgain(j *Job) {
	if j.State != queue.Cancelled || j.Reason != queue.ReasonDependency || j.InputRemoved != 0 {
		return
	}
	if broken, err := r.tx.HasEdgeWithStatus(j.Seq, store.Broken); r.hasFailed(err) || broken {
		return
	}
	if _, taken := r.otherJobWithUniqueKey(j); taken {
		return
	}
	r.restartWaitingTime(j, r.tx.Now())
	r.applyDeclaredLimits(j)
	r.addParentStateChange(j, ParentRerunState)
	r.MoveToState(j, queue.Blocked, queue.EventRetried, dependencyEventDetail)
}

// applyDependencyFailure cancels or holds a job because one of its dependencies is broken. onFailure is the
// job's setting for this case.
func (r *Rules) applyDependencyFailure(j *Job, onFailure queue.OnDependencyFailure) {
	if onFailure != queue.DependencyFailureCancel && j.State == queue.Held {
		return
	}
	j.Reason = queue.ReasonDependency
	if onFailure == queue.DependencyFailureCancel {
		r.MoveToState(j, queue.Cancelled, queue.EventCancelled, dependencyEventDetail)
	} else {
		r.MoveToState(j, queue.Held, queue.EventHeld, dependencyEventDetail)
	}
}

var dependencyEventDetail = []byte(`{"reason":"dependency"}`)
