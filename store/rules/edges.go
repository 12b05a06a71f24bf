package rules

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Edge is an undecided dependency: Child waits for Parent. It is decided once, when the parent ends or is
// removed.
// See docs/decisions/0020.
type Edge struct {
	ID        int64
	Child     int64
	How       queue.ParentEnd
	Otherwise queue.Otherwise
}

// EndedParent is a note that a parent has ended in State, or was removed if State is 0, or runs again if
// State is Anew. It decides, or reopens, the parent's edges with ids up to Upto.
type EndedParent struct {
	ID     int64
	Parent int64
	State  queue.State
	Upto   int64
}

// Anew is the state of a parent that is to run again. Dependants that were cancelled because of the parent
// wait for it again.
const Anew = ^queue.State(0)

// edgesMost limits the edges that are decided in one transaction. Measured with a job that had 100,000
// dependants: with a limit of 250, other commits waited 20 ms; with 50, they waited 8 ms.
const edgesMost = 50

// NotesMost limits the notes about one parent until its edges are decided. If a user ends and retries a job
// again and again, the store does not follow every change.
const NotesMost = 8

var dependencyDetail = []byte(`{"reason":"dependency"}`)

// Check returns an error if a draft of a request depends on a job that does not exist, or on itself through
// other drafts. It also returns an error for demands that no gate can provide.
func (r *Rules) Check(drafts []queue.Job, uid int) error {
	if err := r.resolve(drafts, uid); err != nil {
		return err
	}
	edges := 0
	for i := range drafts {
		if edges += len(drafts[i].After); edges > queue.MaxDependencies {
			return queue.Invalid("depends_on", "the jobs of the request have more than the maximum of %d dependencies; send fewer jobs per request", queue.MaxDependencies)
		}
		var wrong *queue.Error
		if err := queue.CheckDemands(drafts[i].Demands); errors.As(err, &wrong) {
			return at(wrong, i, len(drafts))
		}
		for _, d := range drafts[i].After {
			if d.Draft == 0 && d.ID != "" { // resolve has found the job
				continue
			}
			if d.Draft != 0 {
				if d.Draft < 1 || d.Draft > len(drafts) {
					return at(queue.Invalid("depends_on", "refers to job %d of the request, but the request has only jobs 1 to %d", d.Draft, len(drafts)), i, len(drafts))
				}
				continue
			}
			if _, err := r.tx.Job(d.Job, Summary); errors.Is(err, queue.ErrNotFound) {
				return at(queue.Invalid("depends_on", "there is no job with the number (seq) %d", d.Job), i, len(drafts))
			} else if err != nil {
				return err
			}
		}
	}
	return acyclic(drafts)
}

// resolve finds the jobs that drafts depend on by id: other drafts of the request, or stored jobs.
func (r *Rules) resolve(drafts []queue.Job, uid int) error {
	var named map[string]int
	for i := range drafts {
		for k := range drafts[i].After {
			d := &drafts[i].After[k]
			if d.ID == "" {
				continue
			}
			if named == nil {
				named = make(map[string]int, len(drafts))
				for n := range drafts {
					named[drafts[n].ID] = n + 1
				}
			}
			if d.Draft = named[d.ID]; d.Draft != 0 {
				continue
			}
			seq, err := r.tx.Named(uid, d.ID)
			if err != nil {
				return err
			}
			if d.Job = seq; seq == 0 {
				return at(queue.Invalid("depends_on", "there is no job %q", d.ID), i, len(drafts))
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
	// The request has no other drafts that an id could name.
	drafts[0].ID = ""
	if err := r.resolve(drafts, j.UID); err != nil {
		return err
	}
	up := ancestors{r: r, child: j.Seq, seen: map[int64]bool{}}
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
		if err := up.add(d.Job, d.ID); err != nil {
			return err
		}
	}
	j.After = drafts[0].After
	return nil
}

// rewire replaces the edges of a job that has not started by edges to the parents that checkParents has
// found.
func (r *Rules) rewire(j *Job) error {
	met, _, _, err := r.edgesOf(&j.Job)
	if err == nil {
		err = r.tx.DropEdges(j.Seq)
	}
	for i := 0; i < len(met) && err == nil; i++ {
		err = r.tx.AddEdge(j.Seq, j.After[i], j.OtherwiseDo, met[i])
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
		up, err := a.r.tx.Parents(last, queue.MaxDependencies)
		if err != nil {
			return err
		}
		for _, p := range up {
			if !a.seen[p] {
				a.seen[p] = true
				list = append(list, p)
			}
		}
		if a.edges += len(up); len(a.seen) > maxEdgesAbove || a.edges > maxEdgesAbove {
			return queue.Invalid("depends_on", "the job would depend on more than %d jobs, directly or through other jobs", maxEdgesAbove)
		}
	}
	return nil
}

// maxEdgesAbove limits the jobs and the edges that are visited to find a cycle. Visiting that many does not
// delay other commits noticeably.
const maxEdgesAbove = 2 * queue.MaxDependencies

func at(e *queue.Error, i, of int) error {
	if of > 1 {
		return e.At(i + 1)
	}
	return e
}

// acyclic returns an error that names the drafts of a cycle, if drafts depend on each other. A stored job
// cannot depend on a draft.
func acyclic(drafts []queue.Job) error {
	const (
		unseen = iota
		open
		done
	)
	seen := make([]uint8, len(drafts))
	for first := range drafts {
		if seen[first] != unseen {
			continue
		}
		path, next := []int{first}, []int{0} // iterative, because chains may be long
		seen[first] = open
		for len(path) > 0 {
			i := len(path) - 1
			after := drafts[path[i]].After
			if next[i] == len(after) {
				seen[path[i]] = done
				path, next = path[:i], next[:i]
				continue
			}
			d := after[next[i]].Draft
			next[i]++
			switch {
			case d == 0 || seen[d-1] == done:
			case seen[d-1] == open:
				names := ""
				for _, j := range path {
					if names != "" || j == d-1 {
						names += nameOf(drafts, j) + " waits for "
					}
				}
				return queue.Invalid("depends_on", "jobs would wait for each other: %s", queue.Clip(names+nameOf(drafts, d-1)))
			default:
				seen[d-1] = open
				path, next = append(path, d-1), append(next, 0)
			}
		}
	}
	return nil
}

// nameOf returns the text that names a draft in an error.
func nameOf(drafts []queue.Job, i int) string {
	return cmp.Or(drafts[i].ID, fmt.Sprintf("job %d", i+1))
}

// edgesOf returns the status of each edge of a new job. open reports whether any edge is undecided, and
// failed whether any has failed.
func (r *Rules) edgesOf(draft *queue.Job) (met []store.Met, open, failed bool, err error) {
	for _, d := range draft.After {
		parent, err := r.tx.Job(d.Job, Summary)
		how := store.Open
		switch {
		case d.Draft != 0 && errors.Is(err, queue.ErrNotFound): // the parent is inserted later
		// The parent was removed after this draft was staged.
		case errors.Is(err, queue.ErrNotFound) && draft.OtherwiseDo != queue.OtherwiseRun:
			how = store.Failed
		case errors.Is(err, queue.ErrNotFound):
			how = store.Well
		case err != nil:
			return nil, false, false, err
		case parent.State.Ended() && !d.How.Met(parent.State) && draft.OtherwiseDo != queue.OtherwiseRun:
			how = store.Failed
		case parent.State.Ended():
			how = store.Well
		}
		met, open, failed = append(met, how), open || how == store.Open, failed || how == store.Failed
	}
	return met, open, failed, nil
}

// noteEnded adds a note for a job's dependants: the job has ended in state, or is being removed if state is
// 0.
func (r *Rules) noteEnded(j *Job, state queue.State) error {
	if !r.tx.HasEdges() {
		return nil
	}
	return r.addEnded(j, state)
}

// addEnded adds a note about a parent. If the newest earlier note is also about its end, the new note applies
// only to edges that were added after that note. If the parent runs again and already has NotesMost notes,
// addEnded instead drops the notes after the last Anew note. The last end then decides no further edges.
func (r *Rules) addEnded(j *Job, state queue.State) error {
	n, newest, err := r.tx.Noted(j.Seq)
	if err != nil {
		return err
	}
	after := int64(0)
	switch {
	case n > 0 && state != Anew && newest.State != Anew:
		after = newest.Upto
	case n >= NotesMost && state == Anew:
		if was, err := r.tx.BackToAnew(j.Seq); was || err != nil {
			return err
		}
	}
	return r.tx.AddEnded(j.Seq, j.UID, state, after)
}

// DecideDependants decides a limited number of edges of parents that have ended, or reopens edges of parents
// that run again. It reports whether there are more; Promote continues with them.
func (r *Rules) DecideDependants() (more bool, err error) {
	for left := edgesMost; left > 0; {
		e, found, err := r.tx.NextEnded()
		if err != nil || !found {
			return false, err
		}
		edges, err := r.tx.Edges(e, left)
		if err != nil {
			return false, err
		}
		done := 0
		for ; done < len(edges) && r.HookBytes < MaxHookBytes; done++ {
			do := r.decide
			if e.State == Anew {
				do = r.reopenEdge
			}
			if err := do(&edges[done], e.State); err != nil {
				return false, err
			}
		}
		if done < len(edges) {
			r.tx.WakeAt(r.tx.Now())
			return true, r.tx.Postpone(e.Parent)
		}
		if len(edges) < left {
			err = r.tx.DropEnded(e.ID)
		} else { // a parent with many edges lets the user's other parents go first
			err = r.tx.Postpone(e.Parent)
		}
		if err != nil {
			return false, err
		}
		left -= max(1, len(edges))
	}
	r.tx.WakeAt(r.tx.Now())
	return true, nil
}

// decide decides an edge. If it was the child's last undecided edge, decide makes the child pending. If the
// parent ended in a state that the dependency does not accept, decide does what the child asked for in that
// case. A child that is no longer waiting does not change. A held child may be cancelled, but is not
// released.
func (r *Rules) decide(e *Edge, parent queue.State) error {
	met := store.Well
	if !e.How.Met(parent) && e.Otherwise != queue.OtherwiseRun {
		met = store.Failed
	}
	if err := r.tx.SetEdge(e, met); err != nil {
		return err
	}
	j, err := r.tx.Job(e.Child, Summary)
	if errors.Is(err, queue.ErrNotFound) {
		return nil
	}
	if err != nil || j.State != queue.Blocked && j.State != queue.Held {
		return err
	}
	if met == store.Failed {
		return r.fail(&j, e.Otherwise)
	}
	if j.State == queue.Held {
		return nil
	}
	waits, err := r.tx.Waits(j.Seq, store.Open)
	if waits || err != nil {
		return err
	}
	r.wait(&j, max(r.tx.Now(), j.RunAt))
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
	if _, taken, err := r.keyTaken(&j); taken || err != nil {
		return err
	}
	r.wait(&j, r.tx.Now())
	if err := r.rule(&j); err != nil {
		return err
	}
	if err := r.addEnded(&j, Anew); err != nil {
		return err
	}
	return r.Move(&j, queue.Blocked, queue.EventRetried, dependencyDetail)
}

// fail cancels or holds a job, as it asked for, after a parent ended in a state that its dependency does not
// accept.
func (r *Rules) fail(j *Job, do queue.Otherwise) error {
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
