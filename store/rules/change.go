package rules

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Admit refuses n more jobs of a user that would wait: most are how many may wait in all, and
// mostUser how many of this user; 0 is any number. Those of committed batches wait too.
func Admit(tx Tx, uid int, n, most, mostUser int64) error {
	if err := AdmitAll(tx, n, most); err != nil {
		return err
	}
	return AdmitUser(tx, uid, n, mostUser)
}

// AdmitAll is Admit without a look at the user.
func AdmitAll(tx Tx, n, most int64) error {
	if waiting := tx.Counts().Waiting; most > 0 && waiting+n > most {
		return queue.Errorf(queue.CodeFull, "the queue is full: %d jobs are waiting, and the setting max_pending is %d; try again later", waiting, most)
	}
	return nil
}

// AdmitUser is Admit with a look at the user alone.
func AdmitUser(tx Tx, uid int, n, most int64) error {
	if most <= 0 {
		return nil
	}
	u := tx.User(uid)
	if waiting := u.Waiting + u.Staged; waiting+n > most {
		return queue.Errorf(queue.CodeFull, "the queue is full for this user: %d of their jobs are waiting, and the setting max_pending_per_user is %d; try again later", waiting, most)
	}
	return nil
}

// AdmitBytes refuses more bytes of a user's jobs if these would then hold more than most; 0 means unlimited.
func AdmitBytes(tx Tx, uid int, more, most int64) error {
	if held := tx.User(uid).Bytes; most > 0 && more > 0 && held+more > most {
		return store.QuotaExceeded(held, most, more)
	}
	return nil
}

// AdmitQueues refuses more jobs than a queue may have waiting: so many of each are to come.
func AdmitQueues(tx Tx, of map[string]int64) error {
	for name, n := range of {
		if q := tx.Queue(name); q.Most > 0 && q.Waiting+n > q.Most {
			return queue.Errorf(queue.CodeFull, "queue %s is full: %d jobs are waiting, and the queue's setting max_pending is %d; try again later", name, q.Waiting, q.Most)
		}
	}
	return nil
}

// PerQueue is how many of these jobs are of each queue.
func PerQueue(jobs []queue.Job) map[string]int64 {
	of := make(map[string]int64, 1)
	for i := range jobs {
		of[jobs[i].Queue]++
	}
	return of
}

// CheckUnique refuses drafts of one request whose unique keys others have that do not give way. It
// says which of them are not to be stored, for there is one: a job, or an earlier draft.
func (r *Rules) CheckUnique(drafts []queue.Job) (instead map[int]Instead, err error) {
	var earlier map[string]int // drafts that will have a key
	for i := range drafts {
		d := &drafts[i]
		if d.Unique == "" {
			continue
		}
		if instead == nil {
			instead, earlier = map[int]Instead{}, map[string]int{}
		}
		before, twice := earlier[d.Unique]
		var other *Job
		switch {
		case twice && d.OnConflict == queue.ConflictReject:
			err = &queue.Error{Code: queue.CodeExists, Field: "unique", Message: fmt.Sprintf("job %d of the request has the same unique key %q; give each job its own key", before+1, d.Unique)}
		case twice && d.OnConflict == queue.ConflictReturn:
			instead[i] = Instead{Draft: before}
			continue
		case !twice:
			other, _, err = r.conflict(d)
		}
		var refused *queue.Error
		if errors.As(err, &refused) {
			return nil, at(refused, i, len(drafts))
		}
		if err != nil {
			return nil, err
		}
		if other != nil && d.OnConflict == queue.ConflictReturn {
			instead[i] = Instead{Job: other}
			continue
		}
		earlier[d.Unique] = i
	}
	return instead, acyclicBut(drafts, instead)
}

// acyclicBut refuses drafts that wait for each other once there are others in the place of some.
func acyclicBut(drafts []queue.Job, instead map[int]Instead) error {
	if len(instead) == 0 {
		return nil
	}
	list := slices.Clone(drafts)
	for i := range list {
		after := list[i].After
		list[i].After = nil
		if _, gone := instead[i]; gone {
			continue
		}
		for _, d := range after {
			other, gone := instead[d.Draft-1]
			switch {
			case gone && other.Job != nil: // it waits for none of these
				d.Draft = 0
			case gone:
				d.Draft = other.Draft + 1
			}
			list[i].After = append(list[i].After, d)
		}
	}
	return acyclic(list)
}

// Instead is what a draft is for which there is another one: a job, or a draft before it.
type Instead struct {
	Job   *Job
	Draft int
}

// conflict is the job that has a draft's key, and whether it is to be replaced.
func (r *Rules) conflict(d *queue.Job) (other *Job, replaced bool, err error) {
	j, found, err := r.holder(d.UID, d.Unique)
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

// Replace cancels the job that waits and has the unique key of a draft which CheckUnique has let pass. It
// reports whether there was one.
func (r *Rules) Replace(draft *queue.Job) (gone bool, err error) {
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

// holder is the job that keeps others from having its unique key.
func (r *Rules) holder(uid int, key string) (j Job, found bool, err error) {
	j, found, err = r.tx.Holder(uid, key)
	if found && j.State.Ended() && j.EndedAt.Add(j.UniqueFor) <= r.tx.Now() {
		found = false
	}
	return j, found, err
}

// Insert has a draft wait as a job of this number and id; it is the one of a number, from 0, that
// the engine was given. uid is who asked.
func (r *Rules) Insert(draft *queue.Job, at, uid int, seq int64, id string) error {
	r.job = Job{Job: *draft}
	return r.insert(&r.job, draft, at, uid, seq, id)
}

// insert is Insert, with room for the job.
func (r *Rules) insert(j *Job, draft *queue.Job, at, uid int, seq int64, id string) error {
	now := r.tx.Now()
	j.Seq, j.ID, j.State, j.Parents = seq, id, queue.Pending, len(draft.After)
	if j.RunAt == 0 {
		j.RunAt = now.Add(j.Delay)
	}
	j.CreatedAt, j.UpdatedAt, j.DueAt, j.Since = now, now, j.RunAt, max(now, j.RunAt)
	r.tx.Arrived()
	j.Arrival = r.tx.Counts().Enqueued // itself counts: what is enqueued since earns it points
	j.Rank = r.rankOf(&j.Job)
	err := r.rule(j)
	if err == nil {
		err = r.tx.CountNaming(j, 1)
	}
	if err != nil {
		return err
	}
	met, open, failed, err := r.edgesOf(draft)
	if err != nil {
		return err
	}
	if open || failed {
		j.State = queue.Blocked
	}
	if err := r.stand(j); err != nil {
		return err
	}
	if err := r.tx.Insert(j, at); err != nil {
		return err
	}
	r.tx.Holds(j.UID, j.Stored, 0)
	r.tx.Moved(j, 0, j.State)
	if err := r.tx.AddEvent(queue.EventEnqueued, &j.Job, j.State, ByUID(uid)); err != nil {
		return err
	}
	for i := range met {
		if err := r.tx.AddEdge(seq, draft.After[i], draft.OtherwiseDo, met[i]); err != nil {
			return err
		}
	}
	if failed {
		return r.fail(j, draft.OtherwiseDo)
	}
	return nil
}

// rule has the gates that a job names go by its word: it is the newest.
func (r *Rules) rule(j *Job) error {
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

// SetGate has everybody's lock or rate go by a rule, whatever the jobs that name it say.
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

// rename has a job that has not ended name the gates that it names now, not those it did.
func (r *Rules) rename(was, j *Job) error {
	if err := r.tx.CountNaming(was, -1); err != nil {
		return err
	}
	return r.tx.CountNaming(j, 1)
}

// needs is how much of a job a verb needs: however large a job is, and whatever of it is
// damaged, it can be got rid of.
func needs(verb queue.Verb) Part {
	switch verb {
	case queue.VerbCancel, queue.VerbRemove, queue.VerbHold:
		return Summary
	case queue.VerbEdit:
		return Whole
	}
	return Terms
}

// Change carries out a verb on a job.
func (r *Rules) Change(seq int64, c store.Change) error {
	if r.tx.Lease(seq) != nil {
		return store.ErrLeased
	}
	j, err := r.tx.Job(seq, needs(c.Verb))
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
		r.wait(&j, max(r.tx.Now(), j.RunAt)) // it has no backoff any more
	case queue.VerbRetry, queue.VerbRetryDead:
		if c.Timeout != nil {
			j.Timeout, j.Rewrite = *c.Timeout, WithTerms
		}
		none := ""
		j.Attempts, j.Deferred, j.Refunds, j.Crashes, j.NewError, j.ExitCode, j.Signal, j.ExpiresAt = 0, 0, 0, 0, &none, -1, 0, 0
		r.wait(&j, r.tx.Now())
		if err := r.rule(&j); err != nil { // it comes anew
			return err
		}
	case queue.VerbEdit:
		if err := r.edit(&j, &c); err != nil {
			return err
		}
	}
	if to, err = r.awaits(&j, to); err != nil {
		return err
	}
	j.Rank = r.rankOf(&j.Job)
	return r.Move(&j, to, event, detail)
}

// awaits is Blocked for a job that is to run and waits for others, and Pending for one that was
// blocked and does so no more. One that has run waits for nobody who runs again.
func (r *Rules) awaits(j *Job, to queue.State) (queue.State, error) {
	if to != queue.Pending && to != queue.Failed && to != queue.Blocked || !j.State.May(queue.Blocked) && j.State.Ended() || !r.tx.HasEdges() {
		return to, nil
	}
	waits, err := r.tx.Waits(j.Seq, store.Open)
	switch {
	case waits:
		return queue.Blocked, err
	case to == queue.Blocked:
		r.wait(j, max(r.tx.Now(), j.RunAt))
		return queue.Pending, err
	}
	return to, err
}

// revive has a job that had ended wait again, if there is room for it and nobody has its key, and
// with it those that were cancelled for its sake.
func (r *Rules) revive(j *Job, c *store.Change) error {
	if err := Admit(r.tx, j.UID, 1, c.MaxPending, c.MaxPendingUser); err != nil {
		return err
	}
	if err := AdmitQueues(r.tx, map[string]int64{j.Queue: 1}); err != nil {
		return err
	}
	if other, taken, err := r.keyTaken(j); err != nil {
		return err
	} else if taken {
		return queue.Errorf(queue.CodeExists, "job %[1]s cannot run again, because job %[2]s now has its unique key %[3]q; wait for job %[2]s, or cancel it", j.ID, other.ID, j.Unique)
	}
	if c.Alone || !r.tx.HasEdges() {
		return nil
	}
	r.tx.WakeAt(r.tx.Now())
	return r.addEnded(j, Anew)
}

// keyTaken is the unfinished job that has by now the unique key of one that had ended, if there is one.
func (r *Rules) keyTaken(j *Job) (other Job, taken bool, err error) {
	if j.Unique == "" {
		return other, false, nil
	}
	other, found, err := r.tx.Holder(j.UID, j.Unique)
	return other, found && other.Seq != j.Seq && !other.State.Ended(), err
}

// wait has a job wait, with the turn of one that is enqueued at due and at least one
// attempt.
func (r *Rules) wait(j *Job, due queue.Millis) {
	j.DueAt, j.Since, j.Arrival, j.Reason = due, due, r.tx.Counts().Enqueued, ""
	j.Attempts = min(j.Attempts, j.MaxAttempts-1)
}

// checkEdit refuses what a waiting job may not become.
func (r *Rules) checkEdit(was, j *Job) error {
	if err := queue.CheckDemands(j.Demands); err != nil {
		return err
	}
	if was.Queue != j.Queue {
		if err := AdmitQueues(r.tx, map[string]int64{j.Queue: 1}); err != nil {
			return err
		}
	}
	if was.Unique != j.Unique && j.Unique != "" {
		other, found, err := r.holder(j.UID, j.Unique)
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

// edit is what a person has changed of a waiting job. It keeps its turn unless its time was
// changed.
func (r *Rules) edit(j *Job, c *store.Change) error {
	was := *j
	before, err := r.tx.StoredSize(&was.Job)
	if err != nil {
		return err
	}
	if err := c.Edit(&j.Job); err != nil {
		return err
	}
	if err := r.checkEdit(&was, j); err != nil {
		return err
	}
	after, err := r.tx.StoredSize(&j.Job)
	if err == nil {
		err = AdmitBytes(r.tx, j.UID, after-before, c.MaxBytesUser)
	}
	if err != nil {
		return err
	}
	j.Stored += after - before
	r.tx.Holds(j.UID, after-before, 0)
	if was.Queue != j.Queue {
		r.tx.Moved(&was, was.State, 0)
		r.tx.Moved(j, 0, was.State)
	}
	if j.After != nil {
		j.Parents = len(j.After)
		if err := r.rewire(j); err != nil {
			return err
		}
	}
	if j.Delay != 0 {
		j.RunAt = r.tx.Now().Add(j.Delay)
	}
	if j.RunAt != was.RunAt {
		j.DueAt, j.Since, j.Arrival = j.RunAt, max(r.tx.Now(), j.RunAt), r.tx.Counts().Enqueued
	}
	j.Rewrite = WithEverything
	renamed := !slices.Equal(was.Demands, j.Demands)
	if renamed {
		if err := r.tx.CountNaming(&was, -1); err != nil {
			return err
		}
	}
	if was.Standing == Ready { // it leaves the lane that it has been in
		if err := r.leaveLane(&was); err != nil {
			return err
		}
		j.Standing = Nowhere
	}
	if !renamed { // what it says of its keys is not new
		return nil
	}
	if err := r.rule(j); err != nil {
		return err
	}
	return r.tx.CountNaming(j, 1)
}
