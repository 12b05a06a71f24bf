package rules

import (
	"errors"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Edge is an undecided dependency: the job Child waits for a parent. When the parent ends or is removed, the
// edge is decided: it is then satisfied or broken.
// See docs/decisions/0020.
type Edge struct {
	ID        int64
	Child     int64
	Condition queue.DependencyCondition
	OnFailure queue.OnDependencyFailure
}

// ParentChange is a note about what happened to a parent. If State is 0, the parent was removed. If it is Rerun,
// the parent runs again. Otherwise, the parent has ended in State. The note applies to the parent's edges with
// ids up to LastEdgeID. They will be decided or, for Rerun, reopened.
type ParentChange struct {
	ID         int64
	Parent     int64
	State      queue.State
	LastEdgeID int64
}

// Rerun is the value of ParentChange.State for a parent that is to run again. Dependants that were cancelled
// because of the parent wait for it again.
const Rerun = ^queue.State(0)

// MaxParentChanges limits the notes about one parent until its edges are decided. Without the limit, a user who
// ends and retries a job again and again could add any number of notes.
const MaxParentChanges = 8

// addParentChange adds a note for a job's dependants; see ParentChange.State. If neither this note nor the newest
// earlier one has the state Rerun, this note applies only to edges that were added after the earlier one. If state
// is Rerun and the parent already has MaxParentChanges notes, addParentChange adds none. Instead, it drops the
// notes that are newer than the last Rerun note, and extends that note to all current edges.
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
// dependants were decided, other commits waited 20 ms with a limit of 250, and 8 ms with a limit of 50.
const maxEdgesPerTx = 50

// DecideDependants decides a limited number of edges of parents that have ended, or reopens edges of parents
// that run again. It reports whether there are more such edges, which the next call of Promote decides.
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
		} else { // the parent has many edges, so the user's other parents go first
			r.recordErr(r.tx.PostponeParentChanges(e.Parent))
		}
		remaining -= max(1, len(edges))
	}
	r.tx.WakeAt(r.tx.Now())
	return true, r.err
}

// updateEdge decides an edge, or reopens it if the parent runs again. Then it releases, cancels, holds or
// blocks the child, as the edge's new status requires.
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

// releaseChild makes a child pending if it has no undecided edge left. A held child stays held.
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

// reopenChild makes a child wait again for a parent that runs again. A cancelled child waits again only if this
// parent was the sole reason for the cancellation. In addition, the child must still have its input, and no
// other job may have taken its unique key.
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

// applyDependencyFailure cancels or holds a job after a parent ended in a state that the job's dependency does
// not accept. onFailure is the job's setting for this case.
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
