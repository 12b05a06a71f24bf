package rules

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Admit returns an error if n more waiting jobs of a user exceed a limit. limit bounds the waiting jobs of all
// users, and userLimit those of this user; 0 means unlimited. Jobs of committed batches count as waiting.
func Admit(tx Tx, uid int, n, limit, userLimit int64) error {
	if err := AdmitAll(tx, n, limit); err != nil {
		return err
	}
	return AdmitUser(tx, uid, n, userLimit)
}

// AdmitAll checks only the limit for all users; see Admit.
func AdmitAll(tx Tx, n, limit int64) error {
	if waiting := tx.Counts().Waiting; limit > 0 && waiting+n > limit {
		return queue.Errorf(queue.CodeFull, "the queue is full: %d jobs are waiting, and the setting max_pending is %d; try again later", waiting, limit)
	}
	return nil
}

// AdmitUser checks only the limit for one user, which includes jobs of staged batches; see Admit.
func AdmitUser(tx Tx, uid int, n, limit int64) error {
	if limit <= 0 {
		return nil
	}
	u := tx.User(uid)
	if waiting := u.Waiting + u.Staged; waiting+n > limit {
		return queue.Errorf(queue.CodeFull, "the queue is full for this user: %d of their jobs are waiting, and the setting max_pending_per_user is %d; try again later", waiting, limit)
	}
	return nil
}

// AdmitBytes returns an error if a user's jobs would use more than limit bytes with the added bytes; 0 means
// unlimited.
func AdmitBytes(tx Tx, uid int, added, limit int64) error {
	if used := tx.User(uid).Bytes; limit > 0 && added > 0 && used+added > limit {
		return store.QuotaExceeded(used, limit, added)
	}
	return nil
}

// AdmitQueues returns an error if new jobs exceed a queue's limit on waiting jobs. newJobs maps each queue to
// the number of its new jobs.
func AdmitQueues(tx Tx, newJobs map[string]int64) error {
	for name, n := range newJobs {
		if q := tx.Queue(name); q.Most > 0 && q.Waiting+n > q.Most {
			return queue.Errorf(queue.CodeFull, "queue %s is full: %d jobs are waiting, and the queue's setting max_pending is %d; try again later", name, q.Waiting, q.Most)
		}
	}
	return nil
}

// PerQueue counts jobs by queue.
func PerQueue(jobs []queue.Job) map[string]int64 {
	counts := make(map[string]int64, 1)
	for i := range jobs {
		counts[jobs[i].Queue]++
	}
	return counts
}

// CheckUnique returns an error if a draft of a request has a unique key that is in use: by a stored job or by
// an earlier draft. Some drafts need not be stored, because the receipt can name the other job or draft.
// substitutes contains the index of each such draft, with its substitute.
func (r *Rules) CheckUnique(drafts []queue.Job) (substitutes map[int]Substitute, err error) {
	var earlier map[string]int // for each key, the index of the draft that will have it
	for i := range drafts {
		d := &drafts[i]
		if d.Unique == "" {
			continue
		}
		if substitutes == nil {
			substitutes, earlier = map[int]Substitute{}, map[string]int{}
		}
		earlierIndex, duplicate := earlier[d.Unique]
		var other *Job
		switch {
		case duplicate && d.OnConflict == queue.ConflictReject:
			err = &queue.Error{Code: queue.CodeExists, Field: "unique", Message: fmt.Sprintf("job %d of the request also has the unique key %q; give each job its own key", earlierIndex+1, d.Unique)}
		case duplicate && d.OnConflict == queue.ConflictReturn:
			substitutes[i] = Substitute{Draft: earlierIndex}
			continue
		case !duplicate:
			other, _, err = r.conflict(d)
		}
		var rejection *queue.Error
		if errors.As(err, &rejection) {
			return nil, atDraft(rejection, i, len(drafts))
		}
		if err != nil {
			return nil, err
		}
		if other != nil && d.OnConflict == queue.ConflictReturn {
			substitutes[i] = Substitute{Job: other}
			continue
		}
		earlier[d.Unique] = i
	}
	return substitutes, checkAcyclicSubstituted(drafts, substitutes)
}

// checkAcyclicSubstituted returns an error if drafts would depend on each other after each substituted draft
// is replaced by its substitute.
func checkAcyclicSubstituted(drafts []queue.Job, substitutes map[int]Substitute) error {
	if len(substitutes) == 0 {
		return nil
	}
	list := slices.Clone(drafts)
	for i := range list {
		after := list[i].After
		list[i].After = nil
		if _, substituted := substitutes[i]; substituted {
			continue
		}
		for _, d := range after {
			other, substituted := substitutes[d.Draft-1]
			switch {
			case substituted && other.Job != nil: // a stored job cannot depend on a draft
				d.Draft = 0
			case substituted:
				d.Draft = other.Draft + 1
			}
			list[i].After = append(list[i].After, d)
		}
	}
	return checkAcyclic(list)
}

// Substitute is the substitute for a draft that is not stored: an existing job or, if Job is nil, an earlier
// draft of the request.
type Substitute struct {
	Job   *Job
	Draft int
}

// conflict returns the job that has a draft's unique key, and whether the draft replaces it. It returns an
// error if the draft is to be rejected.
func (r *Rules) conflict(d *queue.Job) (other *Job, replaced bool, err error) {
	j, found, err := r.keyHolder(d.UID, d.Unique)
	switch {
	case err != nil || !found:
		return nil, false, err
	case d.OnConflict == queue.ConflictReturn:
		return &j, false, nil
	case d.OnConflict == queue.ConflictReplace && j.State.Waiting() && r.tx.Lease(j.Seq) == nil:
		return &j, true, nil
	}
	text := fmt.Sprintf("the unique key %q is already used by job %s, which is %v; wait for that job, or cancel it", d.Unique, j.ID, j.State)
	if j.State.Ended() {
		text = fmt.Sprintf("the unique key %q is already used by job %s, which is %v but keeps the key until %s", d.Unique, j.ID, j.State, j.EndedAt.Add(j.UniqueFor))
	}
	return nil, false, &queue.Error{Code: queue.CodeExists, Field: "unique", Message: text}
}

// Replace cancels the waiting job that has the unique key of a draft, if the draft replaces it. The draft
// must have passed CheckUnique. cancelled reports whether Replace cancelled a job.
func (r *Rules) Replace(draft *queue.Job) (cancelled bool, err error) {
	if draft.Unique == "" || draft.OnConflict != queue.ConflictReplace {
		return false, nil
	}
	other, found, err := r.tx.Holder(draft.UID, draft.Unique)
	if err != nil || !found || !other.State.Waiting() {
		return false, err
	}
	other.Reason = queue.ReasonReplaced
	return true, r.Move(&other, queue.Cancelled, queue.EventCancelled, replacedDetail)
}

var replacedDetail = []byte(`{"reason":"replaced"}`)

// keyHolder returns the job that prevents others from using its unique key.
func (r *Rules) keyHolder(uid int, key string) (j Job, found bool, err error) {
	j, found, err = r.tx.Holder(uid, key)
	if found && j.State.Ended() && j.EndedAt.Add(j.UniqueFor) <= r.tx.Now() {
		found = false
	}
	return j, found, err
}

// Insert enqueues a draft as a job with the given seq and id. For draftNumber, see Tx.Insert. uid is the user
// who made the request.
func (r *Rules) Insert(draft *queue.Job, draftNumber, uid int, seq int64, id string) error {
	r.job = Job{Job: *draft}
	return r.insert(&r.job, draft, draftNumber, uid, seq, id)
}

// insert is like Insert, but stores the new job in *j instead of allocating one.
func (r *Rules) insert(j *Job, draft *queue.Job, draftNumber, uid int, seq int64, id string) error {
	now := r.tx.Now()
	j.Seq, j.ID, j.State, j.Parents = seq, id, queue.Pending, len(draft.After)
	if j.RunAt == 0 {
		j.RunAt = now.Add(j.Delay)
	}
	j.CreatedAt, j.UpdatedAt, j.DueAt, j.Since = now, now, j.RunAt, max(now, j.RunAt)
	r.tx.Arrived()
	// The job's arrival number includes the job itself. Each job enqueued later gives it ageing points.
	j.Arrival = r.tx.Counts().Enqueued
	j.Rank = r.rankOf(&j.Job)
	err := r.applyDeclaredLimits(j)
	if err == nil {
		err = r.tx.CountNaming(j, 1)
	}
	if err != nil {
		return err
	}
	statuses, unresolved, failed, err := r.edgeStatuses(draft)
	if err != nil {
		return err
	}
	if unresolved || failed {
		j.State = queue.Blocked
	}
	if err := r.assignSlot(j); err != nil {
		return err
	}
	if err := r.tx.Insert(j, draftNumber); err != nil {
		return err
	}
	r.tx.Holds(j.UID, j.Stored, 0)
	r.tx.Moved(j, 0, j.State)
	if err := r.tx.AddEvent(queue.EventEnqueued, &j.Job, j.State, ByUID(uid)); err != nil {
		return err
	}
	for i := range statuses {
		if err := r.tx.AddEdge(seq, draft.After[i], draft.OtherwiseDo, statuses[i]); err != nil {
			return err
		}
	}
	if failed {
		return r.applyDependencyFailure(j, draft.OtherwiseDo)
	}
	return nil
}

// applyDeclaredLimits sets the limits of locks and rates to those that a job states. If several jobs name the
// same key, the newest job decides.
func (r *Rules) applyDeclaredLimits(j *Job) error {
	for _, d := range j.Demands {
		if !d.Ruled() {
			continue
		}
		gate, err := r.tx.SetRule(j, d)
		if err != nil {
			return err
		}
		if gate != 0 {
			r.Recheck(gate)
			r.recheckResources()
		}
	}
	return nil
}

// SetGate sets the rule of a shared lock or rate. Jobs cannot change it.
func (r *Rules) SetGate(d queue.Demand) error {
	if err := checkGate(d); err != nil {
		return err
	}
	gate, err := r.tx.KeepRule(d)
	if err == nil && gate != 0 {
		r.Recheck(gate)
		r.recheckResources()
	}
	return err
}

func checkGate(d queue.Demand) error {
	if d.N == 0 {
		d.N = 1
		if d.Kind == queue.GateRate {
			d.Per = time.Second
		}
	}
	if err := queue.CheckDemands([]queue.Demand{d}); err != nil {
		return err
	}
	if !d.Ruled() || d.Owner(0) != queue.Everybody {
		return queue.Invalid("key", "%q is not a shared key; shared keys begin with @", queue.Clip(d.Key))
	}
	return nil
}

// recountNamedGates updates the counts of the gates that an unfinished job names, after its demands or its
// user have changed.
func (r *Rules) recountNamedGates(old, j *Job) error {
	if err := r.tx.CountNaming(old, -1); err != nil {
		return err
	}
	return r.tx.CountNaming(j, 1)
}

// partNeededBy returns the part of a job that a verb reads. Cancel, remove and hold read little, so that they
// also work for a large or a damaged job.
func partNeededBy(verb queue.Verb) Part {
	switch verb {
	case queue.VerbCancel, queue.VerbRemove, queue.VerbHold:
		return Summary
	case queue.VerbEdit:
		return Whole
	}
	return Terms
}

// Change applies a verb to a job.
func (r *Rules) Change(seq int64, c store.Change) error {
	if r.tx.Lease(seq) != nil {
		return store.ErrLeased
	}
	j, err := r.tx.Job(seq, partNeededBy(c.Verb))
	if err != nil {
		return err
	}
	if j.Damaged {
		return queue.Errorf(queue.CodeWrongState, "job %[1]s cannot be read; see why with: queuectl show %[1]s, or remove it with: queuectl rm %[1]s", j.ID)
	}
	to, event, acts, err := c.Act(&j.Job)
	if err != nil || !acts {
		return err
	}
	if to.Waiting() && !j.State.Waiting() {
		if err := r.revive(&j, &c); err != nil {
			return err
		}
	}
	detail := ByUID(c.UID)
	switch c.Verb {
	case queue.VerbRemove:
		return r.Remove(&j, detail)
	case queue.VerbCancel, queue.VerbHold:
		j.Reason = ""
		return r.Move(&j, to, event, detail)
	case queue.VerbRelease:
		r.restartWait(&j, max(r.tx.Now(), j.RunAt)) // a released job does not wait for its backoff delay
	case queue.VerbRetry, queue.VerbRetryDead:
		if c.Timeout != nil {
			j.Timeout, j.Rewrite = *c.Timeout, WithTerms
		}
		none := ""
		j.Attempts, j.Deferred, j.Refunds, j.Crashes, j.NewError, j.ExitCode, j.Signal, j.ExpiresAt = 0, 0, 0, 0, &none, -1, 0, 0
		r.restartWait(&j, r.tx.Now())
		// The limits that a retried job states for locks and rates apply again, as if the job were new.
		if err := r.applyDeclaredLimits(&j); err != nil {
			return err
		}
	case queue.VerbEdit:
		if err := r.edit(&j, &c); err != nil {
			return err
		}
	}
	if to, err = r.adjustForDependencies(&j, to); err != nil {
		return err
	}
	j.Rank = r.rankOf(&j.Job)
	return r.Move(&j, to, event, detail)
}

// adjustForDependencies returns the state for a job that a change would set to the given state, taking
// dependencies into account. The state is Blocked if the job has undecided dependencies, and Pending if the
// job was blocked and has none. If the state table does not let an ended job become blocked, the job does not
// wait for parents that run again.
func (r *Rules) adjustForDependencies(j *Job, to queue.State) (queue.State, error) {
	if to != queue.Pending && to != queue.Failed && to != queue.Blocked || !j.State.May(queue.Blocked) && j.State.Ended() || !r.tx.HasEdges() {
		return to, nil
	}
	waits, err := r.tx.Waits(j.Seq, store.Open)
	switch {
	case waits:
		return queue.Blocked, err
	case to == queue.Blocked:
		r.restartWait(j, max(r.tx.Now(), j.RunAt))
		return queue.Pending, err
	}
	return to, err
}

// revive prepares an ended job to wait again. It returns an error if a limit is reached or another job has
// the unique key. Unless c.Alone is set, it also adds a note. The note makes the dependants that were
// cancelled because of this job wait for it again.
func (r *Rules) revive(j *Job, c *store.Change) error {
	if err := Admit(r.tx, j.UID, 1, c.MaxPending, c.MaxPendingUser); err != nil {
		return err
	}
	if err := AdmitQueues(r.tx, map[string]int64{j.Queue: 1}); err != nil {
		return err
	}
	if other, taken, err := r.successorWithKey(j); err != nil {
		return err
	} else if taken {
		return queue.Errorf(queue.CodeExists, "job %[1]s cannot run again, because job %[2]s now has its unique key %[3]q; wait for job %[2]s, or cancel it", j.ID, other.ID, j.Unique)
	}
	if c.Alone || !r.tx.HasEdges() {
		return nil
	}
	r.tx.WakeAt(r.tx.Now())
	return r.addParentNote(j, Anew)
}

// successorWithKey returns the unfinished job that uses the same unique key as an ended job.
func (r *Rules) successorWithKey(j *Job) (other Job, taken bool, err error) {
	if j.Unique == "" {
		return other, false, nil
	}
	other, found, err := r.tx.Holder(j.UID, j.Unique)
	return other, found && other.Seq != j.Seq && !other.State.Ended(), err
}

// restartWait makes a job wait like one that is enqueued at the time due. At least one of its attempts remains.
func (r *Rules) restartWait(j *Job, due queue.Millis) {
	j.DueAt, j.Since, j.Arrival, j.Reason = due, due, r.tx.Counts().Enqueued, ""
	j.Attempts = min(j.Attempts, j.MaxAttempts-1)
}

// checkEdit returns an error if a waiting job may not be changed from old to j.
func (r *Rules) checkEdit(old, j *Job) error {
	if err := queue.CheckDemands(j.Demands); err != nil {
		return err
	}
	if old.Queue != j.Queue {
		if err := AdmitQueues(r.tx, map[string]int64{j.Queue: 1}); err != nil {
			return err
		}
	}
	if old.Unique != j.Unique && j.Unique != "" {
		other, found, err := r.keyHolder(j.UID, j.Unique)
		if err != nil {
			return err
		}
		if found && other.Seq != j.Seq {
			return &queue.Error{Code: queue.CodeExists, Field: "unique", Message: fmt.Sprintf("the unique key %q is already used by job %s", j.Unique, other.ID)}
		}
	}
	if j.After != nil {
		return r.checkParents(j)
	}
	return nil
}

// edit applies a user's changes to a waiting job. The job keeps the waiting time that it has accumulated,
// unless its start time has changed.
func (r *Rules) edit(j *Job, c *store.Change) error {
	old := *j
	sizeBefore, err := r.tx.StoredSize(&old.Job)
	if err != nil {
		return err
	}
	if err := c.Edit(&j.Job); err != nil {
		return err
	}
	if err := r.checkEdit(&old, j); err != nil {
		return err
	}
	sizeAfter, err := r.tx.StoredSize(&j.Job)
	if err == nil {
		err = AdmitBytes(r.tx, j.UID, sizeAfter-sizeBefore, c.MaxBytesUser)
	}
	if err != nil {
		return err
	}
	j.Stored += sizeAfter - sizeBefore
	r.tx.Holds(j.UID, sizeAfter-sizeBefore, 0)
	if old.Queue != j.Queue {
		r.tx.Moved(&old, old.State, 0)
		r.tx.Moved(j, 0, old.State)
	}
	if j.After != nil {
		j.Parents = len(j.After)
		if err := r.replaceEdges(j); err != nil {
			return err
		}
	}
	if j.Delay != 0 {
		j.RunAt = r.tx.Now().Add(j.Delay)
	}
	if j.RunAt != old.RunAt {
		j.DueAt, j.Since, j.Arrival = j.RunAt, max(r.tx.Now(), j.RunAt), r.tx.Counts().Enqueued
	}
	j.Rewrite = WithEverything
	demandsChanged := !slices.Equal(old.Demands, j.Demands)
	if demandsChanged {
		if err := r.tx.CountNaming(&old, -1); err != nil {
			return err
		}
	}
	if old.Standing == Ready { // the edit may move the job to another lane
		if err := r.leaveLane(&old); err != nil {
			return err
		}
		j.Standing = Nowhere
	}
	// The edit can change the limits of locks and rates only if it has changed the demands.
	if !demandsChanged {
		return nil
	}
	if err := r.applyDeclaredLimits(j); err != nil {
		return err
	}
	return r.tx.CountNaming(j, 1)
}
