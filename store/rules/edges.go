package rules

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Edge is an undecided dependency: Child waits for Parent. It is decided when the parent ends or is removed.
// See docs/decisions/0020.
type Edge struct {
	ID        int64
	Child     int64
	How       queue.ParentEnd
	Otherwise queue.Otherwise
}

// EndedParent is a note that a parent has ended in State, or was removed if State is 0, or runs again if
// State is Anew. Because of the note, the parent's edges with ids up to Upto are decided, or reopened for
// Anew.
type EndedParent struct {
	ID     int64
	Parent int64
	State  queue.State
	Upto   int64
}

// Anew is the state of a parent that is to run again. Dependants that were cancelled because of the parent
// wait for it again.
const Anew = ^queue.State(0)

// maxEdgesPerTx limits the edges that are decided in one transaction. Measured with a job that had 100,000
// dependants: with a limit of 250, other commits waited 20 ms; with 50, they waited 8 ms.
const maxEdgesPerTx = 50

// NotesMost limits the notes about one parent until its edges are decided. The limit keeps a user who ends
// and retries a job again and again from adding any number of notes.
const NotesMost = 8

var dependencyDetail = []byte(`{"reason":"dependency"}`)

// Check returns an error if a draft of a request depends on a job that does not exist, or on itself through
// other drafts. It also returns an error for demands that no gate can provide.
func (r *Rules) Check(drafts []queue.Job, uid int) error {
	if err := r.resolveParents(drafts, uid); err != nil {
		return err
	}
	edges := 0
	for i := range drafts {
		if edges += len(drafts[i].After); edges > queue.MaxDependencies {
			return queue.Invalid("depends_on", "the jobs of the request have more than the maximum of %d dependencies; send fewer jobs per request", queue.MaxDependencies)
		}
		var demandError *queue.Error
		if err := queue.CheckDemands(drafts[i].Demands); errors.As(err, &demandError) {
			return atDraft(demandError, i, len(drafts))
		}
		for _, d := range drafts[i].After {
			if d.Draft == 0 && d.ID != "" { // resolveParents has found a stored job for this id
				continue
			}
			if d.Draft != 0 {
				if d.Draft < 1 || d.Draft > len(drafts) {
					return atDraft(queue.Invalid("depends_on", "refers to job %d of the request, but the request has only jobs 1 to %d", d.Draft, len(drafts)), i, len(drafts))
				}
				continue
			}
			if _, err := r.tx.Job(d.Job, Summary); errors.Is(err, queue.ErrNotFound) {
				return atDraft(queue.Invalid("depends_on", "there is no job with the number (seq) %d", d.Job), i, len(drafts))
			} else if err != nil {
				return err
			}
		}
	}
	return checkAcyclic(drafts)
}

// resolveParents finds the jobs that drafts depend on by id: other drafts of the request, or stored jobs.
func (r *Rules) resolveParents(drafts []queue.Job, uid int) error {
	var draftNumbers map[string]int
	for i := range drafts {
		for k := range drafts[i].After {
			d := &drafts[i].After[k]
			if d.ID == "" {
				continue
			}
			if draftNumbers == nil {
				draftNumbers = make(map[string]int, len(drafts))
				for n := range drafts {
					draftNumbers[drafts[n].ID] = n + 1
				}
			}
			if d.Draft = draftNumbers[d.ID]; d.Draft != 0 {
				continue
			}
			seq, err := r.tx.Named(uid, d.ID)
			if err != nil {
				return err
			}
			if d.Job = seq; seq == 0 {
				return atDraft(queue.Invalid("depends_on", "there is no job %q", d.ID), i, len(drafts))
			}
		}
	}
	return nil
}

// checkParents finds the jobs that an edited job depends on. It returns an error if the job cannot wait for
// one of them.
func (r *Rules) checkParents(j *Job) error {
	for i := range j.After {
		if j.After[i].ID == j.ID {
			return queue.Invalid("depends_on", "a job cannot depend on itself")
		}
	}
	drafts := []queue.Job{j.Job}
	// resolveParents must not take this job's own id for a draft of the request.
	drafts[0].ID = ""
	if err := r.resolveParents(drafts, j.UID); err != nil {
		return err
	}
	above := ancestors{r: r, child: j.Seq, seen: map[int64]bool{}}
	for i := range drafts[0].After {
		d := &drafts[0].After[i]
		parent, err := r.tx.Job(d.Job, Summary)
		switch {
		case errors.Is(err, queue.ErrNotFound):
			return queue.Invalid("depends_on", "job %q is not in the queue yet; try again later", d.ID)
		case err != nil:
			return err
		case parent.State.Ended() && !d.How.Met(parent.State) && j.OtherwiseDo != queue.OtherwiseRun:
			return queue.Invalid("depends_on", "job %q has already ended as %v, but the dependency requires %v", d.ID, parent.State, d.How)
		case parent.State.Ended():
			continue
		}
		if err := above.add(d.Job, d.ID); err != nil {
			return err
		}
	}
	j.After = drafts[0].After
	return nil
}

// replaceEdges replaces the edges of a job that has not started by edges to the parents that checkParents has
// found.
func (r *Rules) replaceEdges(j *Job) error {
	statuses, _, _, err := r.edgeStatuses(&j.Job)
	if err == nil {
		err = r.tx.DropEdges(j.Seq)
	}
	for i := 0; i < len(statuses) && err == nil; i++ {
		err = r.tx.AddEdge(j.Seq, j.After[i], j.OtherwiseDo, statuses[i])
	}
	return err
}

// ancestors collects the jobs that a job will wait for, directly or through other jobs.
type ancestors struct {
	r     *Rules
	child int64
	seen  map[int64]bool
	edges int // number of edges followed
}

// add adds a parent and all jobs that it waits for. It visits each job once. It returns an error that
// contains name if one of them waits for the child.
func (a *ancestors) add(parent int64, name string) error {
	if a.seen[parent] {
		return nil
	}
	a.seen[parent] = true
	for list := []int64{parent}; len(list) > 0; {
		last := list[len(list)-1]
		list = list[:len(list)-1]
		if last == a.child {
			return queue.Invalid("depends_on", "jobs would wait for each other: %q waits for this job", name)
		}
		parents, err := a.r.tx.Parents(last, queue.MaxDependencies)
		if err != nil {
			return err
		}
		for _, p := range parents {
			if !a.seen[p] {
				a.seen[p] = true
				list = append(list, p)
			}
		}
		if a.edges += len(parents); len(a.seen) > maxAncestorEdges || a.edges > maxAncestorEdges {
			return queue.Invalid("depends_on", "the job would depend on more than %d jobs, directly or through other jobs", maxAncestorEdges)
		}
	}
	return nil
}

// maxAncestorEdges limits the jobs and the edges that are visited to find a cycle. Visiting that many does not
// delay other commits noticeably.
const maxAncestorEdges = 2 * queue.MaxDependencies

func atDraft(e *queue.Error, i, total int) error {
	if total > 1 {
		return e.At(i + 1)
	}
	return e
}

// checkAcyclic returns an error that names the drafts of a cycle, if drafts depend on each other. A stored job
// cannot depend on a draft.
func checkAcyclic(drafts []queue.Job) error {
	const (
		unvisited = iota
		onPath
		visited
	)
	status := make([]uint8, len(drafts))
	for first := range drafts {
		if status[first] != unvisited {
			continue
		}
		path, next := []int{first}, []int{0} // a loop instead of recursion, because chains may be long
		status[first] = onPath
		for len(path) > 0 {
			i := len(path) - 1
			after := drafts[path[i]].After
			if next[i] == len(after) {
				status[path[i]] = visited
				path, next = path[:i], next[:i]
				continue
			}
			d := after[next[i]].Draft
			next[i]++
			switch {
			case d == 0 || status[d-1] == visited:
			case status[d-1] == onPath:
				names := ""
				for _, j := range path {
					if names != "" || j == d-1 {
						names += draftName(drafts, j) + " waits for "
					}
				}
				return queue.Invalid("depends_on", "jobs would wait for each other: %s", queue.Clip(names+draftName(drafts, d-1)))
			default:
				status[d-1] = onPath
				path, next = append(path, d-1), append(next, 0)
			}
		}
	}
	return nil
}

// draftName returns the text that names a draft in an error.
func draftName(drafts []queue.Job, i int) string {
	return cmp.Or(drafts[i].ID, fmt.Sprintf("job %d", i+1))
}

// edgeStatuses returns the status of each edge of a new job. unresolved reports whether any edge is
// undecided, and failed whether any has failed.
func (r *Rules) edgeStatuses(draft *queue.Job) (statuses []store.Met, unresolved, failed bool, err error) {
	for _, d := range draft.After {
		parent, err := r.tx.Job(d.Job, Summary)
		status := store.Open
		switch {
		case d.Draft != 0 && errors.Is(err, queue.ErrNotFound): // a draft of this request, inserted later
		// The parent was removed after this draft was staged.
		case errors.Is(err, queue.ErrNotFound) && draft.OtherwiseDo != queue.OtherwiseRun:
			status = store.Failed
		case errors.Is(err, queue.ErrNotFound):
			status = store.Well
		case err != nil:
			return nil, false, false, err
		case parent.State.Ended() && !d.How.Met(parent.State) && draft.OtherwiseDo != queue.OtherwiseRun:
			status = store.Failed
		case parent.State.Ended():
			status = store.Well
		}
		statuses = append(statuses, status)
		unresolved = unresolved || status == store.Open
		failed = failed || status == store.Failed
	}
	return statuses, unresolved, failed, nil
}

// noteParentEnded adds a note for a job's dependants: the job has ended in state, or is being removed if
// state is 0.
func (r *Rules) noteParentEnded(j *Job, state queue.State) error {
	if !r.tx.HasEdges() {
		return nil
	}
	return r.addParentNote(j, state)
}

// addParentNote adds a note about a parent. If the newest earlier note also says that the parent has ended,
// the new note applies only to edges that were added since. If state is Anew and the parent already has
// NotesMost notes, addParentNote adds none. Instead, it drops the notes that are newer than the last Anew
// note, and extends that note to all current edges.
func (r *Rules) addParentNote(j *Job, state queue.State) error {
	n, newest, err := r.tx.Noted(j.Seq)
	if err != nil {
		return err
	}
	after := int64(0)
	switch {
	case n > 0 && state != Anew && newest.State != Anew:
		after = newest.Upto
	case n >= NotesMost && state == Anew:
		if found, err := r.tx.BackToAnew(j.Seq); found || err != nil {
			return err
		}
	}
	return r.tx.AddEnded(j.Seq, j.UID, state, after)
}

// DecideDependants decides a limited number of edges of parents that have ended, or reopens edges of parents
// that run again. It reports whether there are more such edges, which the next call of Promote decides.
func (r *Rules) DecideDependants() (more bool, err error) {
	for remaining := maxEdgesPerTx; remaining > 0; {
		e, found, err := r.tx.NextEnded()
		if err != nil || !found {
			return false, err
		}
		edges, err := r.tx.Edges(e, remaining)
		if err != nil {
			return false, err
		}
		done := 0
		for ; done < len(edges) && r.HookBytes < MaxHookBytes; done++ {
			decide := r.decideEdge
			if e.State == Anew {
				decide = r.reopenEdge
			}
			if err := decide(&edges[done], e.State); err != nil {
				return false, err
			}
		}
		if done < len(edges) {
			r.tx.WakeAt(r.tx.Now())
			return true, r.tx.Postpone(e.Parent)
		}
		if len(edges) < remaining {
			err = r.tx.DropEnded(e.ID)
		} else { // the parent has many edges, so the user's other parents go first
			err = r.tx.Postpone(e.Parent)
		}
		if err != nil {
			return false, err
		}
		remaining -= max(1, len(edges))
	}
	r.tx.WakeAt(r.tx.Now())
	return true, nil
}

// decideEdge decides an edge. If it was the child's last undecided edge, decideEdge makes the child pending.
// If the parent ended in a state that the dependency does not accept, decideEdge does what the child asked
// for in that case. A child that no longer waits for this edge keeps its state. A held child may be
// cancelled, but is never released here.
func (r *Rules) decideEdge(e *Edge, parent queue.State) error {
	status := store.Well
	if !e.How.Met(parent) && e.Otherwise != queue.OtherwiseRun {
		status = store.Failed
	}
	if err := r.tx.SetEdge(e, status); err != nil {
		return err
	}
	j, err := r.tx.Job(e.Child, Summary)
	if errors.Is(err, queue.ErrNotFound) {
		return nil
	}
	if err != nil || j.State != queue.Blocked && j.State != queue.Held {
		return err
	}
	if status == store.Failed {
		return r.applyDependencyFailure(&j, e.Otherwise)
	}
	if j.State == queue.Held {
		return nil
	}
	waits, err := r.tx.Waits(j.Seq, store.Open)
	if waits || err != nil {
		return err
	}
	r.restartWait(&j, max(r.tx.Now(), j.RunAt))
	j.Rank = r.rankOf(&j.Job)
	return r.Move(&j, queue.Pending, queue.EventReleased, dependencyDetail)
}

// reopenEdge makes a child wait again for a parent that runs again. A cancelled child returns if it was
// cancelled because of this parent and no other. It must still have its input, and no other job may have
// taken its unique key.
func (r *Rules) reopenEdge(e *Edge, _ queue.State) error {
	if err := r.tx.SetEdge(e, store.Open); err != nil {
		return err
	}
	j, err := r.tx.Job(e.Child, Summary)
	if errors.Is(err, queue.ErrNotFound) {
		return nil
	}
	if err != nil || j.State != queue.Cancelled || j.Reason != queue.ReasonDependency || j.InputRemoved != 0 {
		return err
	}
	if failed, err := r.tx.Waits(j.Seq, store.Failed); failed || err != nil {
		return err
	}
	if _, taken, err := r.successorWithKey(&j); taken || err != nil {
		return err
	}
	r.restartWait(&j, r.tx.Now())
	if err := r.applyDeclaredLimits(&j); err != nil {
		return err
	}
	if err := r.addParentNote(&j, Anew); err != nil {
		return err
	}
	return r.Move(&j, queue.Blocked, queue.EventRetried, dependencyDetail)
}

// applyDependencyFailure cancels or holds a job, as it asked for, after a parent ended in a state that its
// dependency does not accept.
func (r *Rules) applyDependencyFailure(j *Job, do queue.Otherwise) error {
	switch {
	case do == queue.OtherwiseCancel:
		j.Reason = queue.ReasonDependency
		return r.Move(j, queue.Cancelled, queue.EventCancelled, dependencyDetail)
	case j.State != queue.Held:
		j.Reason = queue.ReasonDependency
		return r.Move(j, queue.Held, queue.EventHeld, dependencyDetail)
	}
	return nil
}
