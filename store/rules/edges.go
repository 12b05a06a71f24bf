package rules

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Edge is a dependency that is not decided: Child waits for Parent. It is decided once, when its
// parent ends or is removed.
// See docs/decisions/0020.
type Edge struct {
	ID        int64
	Child     int64
	How       queue.ParentEnd
	Otherwise queue.Otherwise
}

// EndedParent is a parent that has ended, or was removed if State is 0: its edges up to the one
// numbered Upto are to be decided by that.
type EndedParent struct {
	ID     int64
	Parent int64
	State  queue.State
	Upto   int64
}

// Anew is the state of a parent that is to run again: what was cancelled for its sake waits for it
// again.
const Anew = ^queue.State(0)

// edgesMost is how many edges are decided in one transaction: with 250, others waited for the disk
// 20 ms where a job had 100,000 dependants, with 50 they waited 8.
const edgesMost = 50

// NotesMost is how many ends of a job, and how often it was to run anew, are noted until its edges are decided. One
// whose user ends and revives it again and again is not followed through all of that.
const NotesMost = 8

var dependencyDetail = []byte(`{"reason":"dependency"}`)

// Check refuses drafts of one request of which one waits for a job that is not there, or for
// itself over others, or demands what no gate could meet.
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
			if d.Draft == 0 && d.ID != "" { // it was found
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

// resolve finds the jobs that drafts name: drafts of the same request, or jobs that are there.
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

// checkParents finds the jobs that an edit has a job wait for, and refuses what it cannot wait for.
func (r *Rules) checkParents(j *Job) error {
	for i := range j.After {
		if j.After[i].ID == j.ID {
			return queue.Invalid("depends_on", "a job cannot depend on itself")
		}
	}
	drafts := []queue.Job{j.Job}
	drafts[0].ID = "" // nothing else is of this request
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

// rewire has a job that has not started wait for those that checkParents has found, and for no
// others.
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

// ancestors are the jobs that a job is to wait for, and that those wait for, over others.
type ancestors struct {
	r     *Rules
	child int64
	seen  map[int64]bool
	edges int // that were followed
}

// add adds a parent by its name and all above it: each job is looked at once. It refuses one that waits
// for the child.
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

// maxEdgesAbove is how many jobs are looked at, and edges followed, to find out whether jobs wait for
// each other: few enough that nobody who waits for the disk feels it.
const maxEdgesAbove = 2 * queue.MaxDependencies

func at(e *queue.Error, i, of int) error {
	if of > 1 {
		return e.At(i + 1)
	}
	return e
}

// acyclic refuses drafts that wait for each other, naming them. What is stored cannot wait for a
// draft.
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
		path, next := []int{first}, []int{0} // a walk without recursion: chains may be long
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

// nameOf is how a draft is called.
func nameOf(drafts []queue.Job, i int) string {
	return cmp.Or(drafts[i].ID, fmt.Sprintf("job %d", i+1))
}

// edgesOf are those of a new job that waits for others: open ones, and those that are decided already. It
// says whether any is open, and whether one has failed.
func (r *Rules) edgesOf(draft *queue.Job) (met []store.Met, open, failed bool, err error) {
	for _, d := range draft.After {
		parent, err := r.tx.Job(d.Job, Summary)
		how := store.Open
		switch {
		case d.Draft != 0 && errors.Is(err, queue.ErrNotFound): // it comes later
		case errors.Is(err, queue.ErrNotFound) && draft.OtherwiseDo != queue.OtherwiseRun: // it was removed since this draft was staged
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

// noteEnded notes that a job has ended, or is removed if the state is 0, for those that wait for it.
func (r *Rules) noteEnded(j *Job, state queue.State) error {
	if !r.tx.HasEdges() {
		return nil
	}
	return r.addEnded(j, state)
}

// addEnded notes that what waits for a job is to be decided. What an end is noted for is not noted for the next one. Of
// one that runs anew, and of which NotesMost are noted, the last end is decided for no others any more.
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

// DecideDependants decides what waits for jobs that have ended, a bounded number; Promote goes on.
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
		} else { // one with many lets others of its user go on
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

// decide ends an edge, and has its job run if it was the last one, or what was asked for if the
// parent has ended otherwise. A job that waits no more is left as it is; one that a person holds is
// cancelled, if that was asked for, but not released.
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

// reopenEdge has a job wait again for one that runs anew. It comes back if it was cancelled for its
// sake, for that of no other, still has its input, and no other job has its unique key by now.
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

// fail does with a job what was asked for if one that it waits for does not end as it should.
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
