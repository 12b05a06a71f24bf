package rules

import (
	"errors"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Edge is an undecided dependency: Child waits for Parent. It is decided when the parent ends or is removed.
// See docs/decisions/0020.
type Edge struct {
	ID        int64
	Child     int64
	Condition queue.DependencyCondition
	OnFailure queue.OnDependencyFailure
}

// ParentChange is a note that a parent has ended in State, or was removed if State is 0, or runs again if
// State is Rerun. Because of the note, the parent's edges with ids up to LastEdgeID are decided, or reopened
// for Rerun.
type ParentChange struct {
	ID         int64
	Parent     int64
	State      queue.State
	LastEdgeID int64
}

// Rerun is the state of a parent that is to run again. Dependants that were cancelled because of the parent
// wait for it again.
const Rerun = ^queue.State(0)

// MaxParentChanges limits the notes about one parent until its edges are decided. The limit keeps a user who ends
// and retries a job again and again from adding any number of notes.
const MaxParentChanges = 8

// addParentChange adds a note for a job's dependants; see ParentChange.State. If the newest earlier note also says
// that the parent has ended, the new note applies only to edges that were added since. If state is Rerun and the
// parent already has MaxParentChanges notes, addParentChange adds none. Instead, it drops the notes
// that are newer than the last Rerun note, and extends that note to all current edges.
func addParentChange(edges Dependencies, j *Job, state queue.State) error {
	if !edges.HasEdges() {
		return nil
	}
	n, newest, err := edges.CountParentChanges(j.Seq)
	if err != nil {
		return err
	}
	after := int64(0)
	switch {
	case n > 0 && state != Rerun && newest.State != Rerun:
		after = newest.LastEdgeID
	case n >= MaxParentChanges && state == Rerun:
		if found, err := edges.ExtendRerunChange(j.Seq); found || err != nil {
			return err
		}
	}
	return edges.AddParentChange(j.Seq, j.UID, state, after)
}

// maxEdgesPerTx limits the edges that are decided in one transaction. Measured with a job that had 100,000
// dependants: with a limit of 250, other commits waited 20 ms; with 50, they waited 8 ms.
const maxEdgesPerTx = 50

// DecideDependants decides a limited number of edges of parents that have ended, or reopens edges of parents
// that run again. It reports whether there are more such edges, which the next call of Promote decides.
func (r *Rules) DecideDependants() (more bool, err error) {
	for remaining := maxEdgesPerTx; remaining > 0; {
		e, found, err := r.tx.NextParentChange()
		if err != nil || !found {
			return false, err
		}
		edges, err := r.tx.EdgesToDecide(e, remaining)
		if err != nil {
			return false, err
		}
		done := 0
		for ; done < len(edges) && r.HookBytes < MaxHookBytes; done++ {
			if err := r.updateEdge(&edges[done], e.State); err != nil {
				return false, err
			}
		}
		if done < len(edges) {
			r.tx.WakeAt(r.tx.Now())
			return true, r.tx.PostponeParentChanges(e.Parent)
		}
		if len(edges) < remaining {
			err = r.tx.DeleteParentChange(e.ID)
		} else { // the parent has many edges, so the user's other parents go first
			err = r.tx.PostponeParentChanges(e.Parent)
		}
		if err != nil {
			return false, err
		}
		remaining -= max(1, len(edges))
	}
	r.tx.WakeAt(r.tx.Now())
	return true, nil
}

// updateEdge decides an edge, or reopens it if the parent runs again. Then it changes the child accordingly.
func (r *Rules) updateEdge(e *Edge, parent queue.State) error {
	status := store.Satisfied
	switch {
	case parent == Rerun:
		status = store.Unresolved
	case !e.Condition.SatisfiedBy(parent) && e.OnFailure != queue.DependencyFailureRun:
		status = store.Broken
	}
	if err := r.tx.SetEdgeStatus(e, status); err != nil {
		return err
	}
	j, err := r.tx.Job(e.Child, ReadSummary)
	switch {
	case errors.Is(err, queue.ErrNotFound):
		return nil
	case err != nil:
		return err
	case parent == Rerun:
		return r.reopenChild(&j)
	case j.State != queue.Blocked && j.State != queue.Held: // the child no longer waits for this edge
		return nil
	case status == store.Broken:
		return r.applyDependencyFailure(&j, e.OnFailure)
	}
	return r.releaseChild(&j)
}

// releaseChild makes a child pending if it has no undecided edge left. A held child stays held.
func (r *Rules) releaseChild(j *Job) error {
	if j.State == queue.Held {
		return nil
	}
	waits, err := r.tx.HasEdgeWithStatus(j.Seq, store.Unresolved)
	if waits || err != nil {
		return err
	}
	r.restartWait(j, max(r.tx.Now(), j.RunAt))
	j.Rank = rankOf(r.tx, &j.Job)
	return r.Move(j, queue.Pending, queue.EventReleased, dependencyDetail)
}

// reopenChild makes a child wait again for a parent that runs again. A cancelled child returns if it was
// cancelled because of this parent and no other. It must still have its input, and no other job may have
// taken its unique key.
func (r *Rules) reopenChild(j *Job) error {
	if j.State != queue.Cancelled || j.Reason != queue.ReasonDependency || j.InputRemoved != 0 {
		return nil
	}
	if failed, err := r.tx.HasEdgeWithStatus(j.Seq, store.Broken); failed || err != nil {
		return err
	}
	if _, taken, err := r.successorWithKey(j); taken || err != nil {
		return err
	}
	r.restartWait(j, r.tx.Now())
	if err := r.applyDeclaredLimits(j); err != nil {
		return err
	}
	if err := addParentChange(r.tx, j, Rerun); err != nil {
		return err
	}
	return r.Move(j, queue.Blocked, queue.EventRetried, dependencyDetail)
}

// applyDependencyFailure cancels or holds a job, as it asked for, after a parent ended in a state that its
// dependency does not accept.
func (r *Rules) applyDependencyFailure(j *Job, do queue.OnDependencyFailure) error {
	switch {
	case do == queue.DependencyFailureCancel:
		j.Reason = queue.ReasonDependency
		return r.Move(j, queue.Cancelled, queue.EventCancelled, dependencyDetail)
	case j.State != queue.Held:
		j.Reason = queue.ReasonDependency
		return r.Move(j, queue.Held, queue.EventHeld, dependencyDetail)
	}
	return nil
}

var dependencyDetail = []byte(`{"reason":"dependency"}`)
