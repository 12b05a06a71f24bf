package rules

import (
	"slices"

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
		return queue.Errorf(queue.CodeFull, "the queue is full: %d jobs wait and max_pending is %d; try again later", waiting, most)
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
		return queue.Errorf(queue.CodeFull, "the queue is full for this user: %d of their jobs wait and max_pending_per_user is %d; try again later", waiting, most)
	}
	return nil
}

// Insert has a draft wait as a job of this number and id; it is the one of a number, from 0, that
// the engine was given. uid is who asked.
func (r *Rules) Insert(draft *queue.Job, at, uid int, seq int64, id string) error {
	now := r.tx.Now()
	r.job = Job{Job: *draft}
	j := &r.job
	j.Seq, j.ID, j.State = seq, id, queue.Pending
	if j.RunAt == 0 {
		j.RunAt = now.Add(j.Delay)
	}
	j.CreatedAt, j.UpdatedAt, j.DueAt, j.Since = now, now, j.RunAt, max(now, j.RunAt)
	j.Arrival = r.tx.Counts().Enqueued
	r.tx.Arrived()
	j.Rank = r.rankOf(&j.Job)
	err := r.rule(j)
	if err == nil {
		err = r.tx.CountNaming(j, 1)
	}
	if err != nil {
		return err
	}
	open, failed, err := r.depend(draft)
	if err != nil {
		return err
	}
	if len(open) > 0 || failed {
		j.State = queue.Blocked
	}
	if err := r.stand(j); err != nil {
		return err
	}
	if err := r.tx.Insert(j, at); err != nil {
		return err
	}
	r.tx.Moved(seq, j.UID, 0, j.State)
	if err := r.tx.AddEvent(queue.EventEnqueued, seq, id, j.State, ByUID(uid)); err != nil {
		return err
	}
	for _, d := range open {
		if err := r.tx.AddEdge(seq, d, draft.OtherwiseDo); err != nil {
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
		gate, err := r.tx.Rule(j, d)
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
		return queue.Errorf(queue.CodeWrongState, "job %s cannot be read; show says why, rm removes it", j.ID)
	}
	to, event, acts, err := c.Act(&j.Job)
	if err != nil || !acts {
		return err
	}
	if to == queue.Pending && j.State != queue.Pending && r.tx.HasEdges() {
		if waits, err := r.tx.Waits(seq); err != nil {
			return err
		} else if waits {
			to = queue.Blocked
		}
	}
	if to.Waiting() && !j.State.Waiting() {
		if err := Admit(r.tx, j.UID, 1, c.MaxPending, c.MaxPendingUser); err != nil {
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
		r.wait(&j, max(r.tx.Now(), j.DueAt))
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
		if err := r.edit(&j, c.Edit); err != nil {
			return err
		}
	}
	j.Rank = r.rankOf(&j.Job)
	return r.Move(&j, to, event, detail)
}

// wait has a job wait, with the turn of one that is enqueued at due and at least one
// attempt.
func (r *Rules) wait(j *Job, due queue.Millis) {
	j.DueAt, j.Since, j.Arrival, j.Reason = due, due, r.tx.Counts().Enqueued, ""
	j.Attempts = min(j.Attempts, j.MaxAttempts-1)
}

// edit is what a person has changed of a waiting job. It keeps its turn unless its time was
// changed.
func (r *Rules) edit(j *Job, edit func(*queue.Job) error) error {
	was := *j
	if err := edit(&j.Job); err != nil {
		return err
	}
	if err := queue.CheckDemands(j.Demands); err != nil {
		return err
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
		if err := r.rename(&was, j); err != nil {
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
	return r.rule(j)
}
