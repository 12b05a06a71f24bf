package memstore

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Enqueue stores all drafts of a request, or none.
func (s *Store) Enqueue(ctx context.Context, r store.Request) (receipt store.Receipt, err error) {
	err = s.update(ctx, func(now queue.Millis) error {
		receipt, err = s.enqueue(r, now)
		return err
	})
	return receipt, err
}

func (s *Store) enqueue(r store.Request, now queue.Millis) (store.Receipt, error) {
	k := key{r.UID, r.Key}
	if m, known := s.keys[k]; known && r.Key != "" {
		if m.sum != r.Sum {
			return store.Receipt{}, &queue.Error{Code: queue.CodeExists, Field: "key", Message: "was used for another request; give a new one"}
		}
		known := m.receipt
		known.IDs, known.Seqs, known.Duplicate = slices.Clone(known.IDs), slices.Clone(known.Seqs), true
		return known, nil
	}
	receipt, err := s.enqueueAll(r, now)
	if err == nil {
		s.own(r)
	}
	if err == nil && r.Key != "" {
		kept := receipt
		kept.IDs, kept.Seqs = slices.Clone(kept.IDs), slices.Clone(kept.Seqs)
		s.keys[k] = memory{now, r.Sum, kept}
	}
	return receipt, err
}

// enqueueAll stores the drafts as jobs, or commits the batch whose last frame they are.
func (s *Store) enqueueAll(r store.Request, now queue.Millis) (store.Receipt, error) {
	if b := s.staged(r.UID, r.Batch); b != nil && r.Batch != "" {
		return s.commit(b, r, now)
	}
	if r.Batch != "" && s.forgotten(r) {
		return store.Receipt{}, store.ErrForgotten
	}
	n := len(r.Drafts)
	if n == 0 || n > queue.MaxBatch {
		return store.Receipt{}, errDrafts(n)
	}
	if err := s.admitAll(r); err != nil {
		return store.Receipt{}, err
	}
	receipt, err := s.name(r.Drafts)
	if err != nil {
		return store.Receipt{}, err
	}
	receipt.Begun = s.begins(perQueue(r.Drafts))
	last := receipt.Seqs[len(receipt.Seqs)-1]
	if err := s.findKeyed(r.Drafts, &receipt, now); err != nil { // checked before anything is changed
		return store.Receipt{}, err
	}
	if receipt.Found != nil {
		for i := range r.Drafts {
			if !receipt.Found[i] && waitsForItself(i, r.Drafts, receipt, len(r.Drafts)) {
				return store.Receipt{}, queue.Invalid("depends_on", "jobs would wait for each other")
			}
		}
	}
	s.seq = max(s.seq, last)
	for i, draft := range r.Drafts {
		if receipt.Found != nil && receipt.Found[i] {
			continue
		}
		if j := s.holds(draft.UID, draft.Unique, now); j != nil && j.State.Waiting() { // replaced by the draft
			s.giveWay(j, now)
		}
		draft.ID, draft.Seq = receipt.IDs[i], receipt.Seqs[i]
		s.add(afterSeqs(draft, receipt), r.UID, now)
	}
	return receipt, nil
}

func (s *Store) admitAll(r store.Request) error {
	if err := s.admit(int64(len(r.Drafts)), r.MaxPending); err != nil {
		return err
	}
	if err := s.admitUser(r.UID, int64(len(r.Drafts)), r.MaxPendingUser); err != nil {
		return err
	}
	if err := s.admitBytes(r.UID, storedAll(r.Drafts), r.MaxBytesUser); err != nil {
		return err
	}
	if err := s.admitQueues(perQueue(r.Drafts)); err != nil {
		return err
	}
	if err := s.admitNew(r.UID, perQueue(r.Drafts)); err != nil {
		return err
	}
	return s.checkDependencies(r.Drafts, r.UID)
}

// findKeyed sets receipt.Found, and the ids and seqs, for drafts whose unique key another job or draft has.
func (s *Store) findKeyed(drafts []queue.Job, receipt *store.Receipt, now queue.Millis) error {
	keyed := map[string]int{}
	found := func(i int, id string, seq int64) {
		if receipt.Found == nil {
			receipt.Found = make([]bool, len(drafts))
		}
		receipt.IDs[i], receipt.Seqs[i], receipt.Found[i] = id, seq, true
	}
	for i := range drafts {
		d := &drafts[i]
		if d.Unique == "" {
			continue
		}
		before, twice := keyed[d.Unique]
		if twice && d.OnConflict == queue.ConflictReject {
			return queue.Errorf(queue.CodeExists, "another draft has the key")
		}
		if twice && d.OnConflict == queue.ConflictReturn {
			found(i, receipt.IDs[before], receipt.Seqs[before])
			continue
		}
		if !twice {
			instead, err := s.conflict(d, now)
			if err != nil {
				return err
			}
			if instead != nil {
				found(i, instead.ID, instead.Seq)
				continue
			}
		}
		keyed[d.Unique] = i
	}
	return nil
}

// afterSeqs returns a copy of a draft whose dependencies on other drafts are replaced by seqs.
func afterSeqs(draft queue.Job, r store.Receipt) queue.Job {
	draft.After = slices.Clone(draft.After)
	for k := range draft.After {
		if d := &draft.After[k]; d.Draft != 0 {
			d.Job, d.Draft = r.Seqs[d.Draft-1], 0
		}
	}
	return draft
}

func errDrafts(n int) error {
	return queue.Invalid("jobs", "are %d; give 1 to %d", n, queue.MaxBatch)
}

// name chooses a seq and an id for each draft. It stores nothing.
func (s *Store) name(drafts []queue.Job) (store.Receipt, error) {
	var r store.Receipt
	taken := map[string]bool{}
	for _, j := range s.jobs {
		taken[j.ID] = true
	}
	for _, b := range s.batches {
		for _, frame := range b.frames {
			for i := range frame {
				taken[frame[i].ID] = true
			}
		}
	}
	seq := s.seq
	for i, draft := range drafts {
		seq++
		id := draft.ID
		if id == "" {
			for taken[strconv.FormatInt(seq, 10)] {
				seq++
			}
			id = strconv.FormatInt(seq, 10)
		}
		if taken[id] {
			return store.Receipt{}, idTaken(id, i, len(drafts))
		}
		taken[id] = true
		r.IDs, r.Seqs = append(r.IDs, id), append(r.Seqs, seq)
	}
	return r, nil
}

func idTaken(id string, i, n int) error {
	e := queue.Errorf(queue.CodeExists, "%s exists already; give another id or none", id)
	e.Field = "id"
	if n > 1 {
		return e.At(i + 1)
	}
	return e
}

// add stores a draft that has its seq and id.
func (s *Store) add(draft queue.Job, uid int, now queue.Millis) {
	j := &job{Job: copyJob(draft)}
	if !s.exists(j.Queue) {
		s.makers[j.Queue] = j.UID
	}
	defer func() {
		if j.UID < 0 { // the batch's owner was disowned before this frame was applied
			s.disown(j, j.UID, now)
		}
	}()
	j.State = 0
	s.word(j, nil, now)
	j.CreatedAt = now
	if j.RunAt == 0 {
		j.RunAt = now.Add(j.Delay)
	}
	j.DueAt = j.RunAt
	j.Delay = 0
	s.place(j, max(now, j.RunAt), s.enqueued+1)
	j.asleep = j.RunAt > now
	j.otherwise, j.After, j.OtherwiseDo, j.OnConflict = draft.OtherwiseDo, nil, 0, 0
	j.links = s.linksOf(draft.After, j.Seq, j.otherwise)
	j.Parents = len(j.links)
	failed := j.waits(store.Failed)
	first := queue.Pending
	if j.waits(store.Open) || failed {
		first = queue.Blocked
	}
	s.move(j, first, now)
	s.tell(j, queue.EventEnqueued, queue.EventDetail{UID: &uid}, now)
	s.jobs[j.Seq] = j
	s.seq = max(s.seq, j.Seq)
	s.enqueued++
	if failed {
		s.decideOne(j, false, now)
	}
}

// Change applies a verb to a job.
func (s *Store) Change(ctx context.Context, seq int64, c store.Change) error {
	return s.update(ctx, func(now queue.Millis) error {
		j, err := s.find(seq)
		if err != nil {
			return err
		}
		if j.leased {
			return store.ErrLeased
		}
		return s.change(j, c, now)
	})
}

func (s *Store) change(j *job, c store.Change, now queue.Millis) error {
	to, event, acts, err := c.Act(&j.Job)
	if err != nil || !acts {
		return err
	}
	if to.Waiting() && !j.State.Waiting() {
		if err := s.admit(1, c.MaxPending); err != nil {
			return err
		}
		if err := s.admitUser(j.UID, 1, c.MaxPendingUser); err != nil {
			return err
		}
		if err := s.admitQueues(map[string]int64{j.Queue: 1}); err != nil {
			return err
		}
		if other := s.holder(j.UID, j.Unique); other != nil && !other.State.Ended() {
			return queue.Errorf(queue.CodeExists, "job %s has the key", other.ID)
		}
		if !c.Alone {
			s.decided = append(s.decided, end{seq: j.Seq, anew: true})
		}
	}
	switch c.Verb {
	case queue.VerbEdit:
		if err := s.edit(j, &c, now); err != nil {
			return err
		}
	case queue.VerbRemove:
		s.remove(j)
	case queue.VerbRetry, queue.VerbRetryDead:
		s.word(j, nil, now)
		j.Attempts, j.Deferred, j.Refunds, j.Crashes, j.Error, j.ExitCode, j.Signal, j.ExpiresAt = 0, 0, 0, 0, "", -1, 0, 0
		if c.Timeout != nil {
			j.Timeout = *c.Timeout
		}
		s.wait(j, now)
	case queue.VerbRelease:
		s.wait(j, max(now, j.RunAt))
	}
	if c.Verb != queue.VerbEdit {
		j.Reason = "" // the reason explained an earlier failure
	}
	switch {
	// The job has run, so it does not wait for parents that run again.
	case j.State == queue.Completed, j.State == queue.Dead:
	case to == queue.Pending && j.waits(store.Open), to == queue.Failed && j.waits(store.Open):
		to = queue.Blocked
	case to == queue.Blocked && !j.waits(store.Open):
		s.wait(j, max(now, j.RunAt))
		to = queue.Pending
	}
	if to == 0 {
		if !j.State.Ended() {
			s.decided = append(s.decided, end{seq: j.Seq})
		}
		j.State = 0
	} else {
		s.move(j, to, now)
	}
	s.tell(j, event, queue.EventDetail{UID: &c.UID}, now)
	return nil
}

// wait makes a job wait like one that is enqueued at the time due. At least one of its attempts remains.
func (s *Store) wait(j *job, due queue.Millis) {
	s.place(j, due, s.enqueued)
	j.DueAt, j.asleep = due, due > s.now()
	j.Attempts = min(j.Attempts, j.MaxAttempts-1)
}

// edit changes a waiting job. The job keeps the waiting time that it has accumulated, unless its start time
// has changed.
func (s *Store) edit(j *job, c *store.Change, now queue.Millis) error {
	edited := copyJob(j.Job)
	if err := c.Edit(&edited); err != nil {
		return err
	}
	if err := s.admitBytes(j.UID, stored(&edited)-stored(&j.Job), c.MaxBytesUser); err != nil {
		return err
	}
	if err := queue.CheckDemands(edited.Demands); err != nil {
		return err
	}
	if edited.Delay != 0 {
		edited.RunAt, edited.Delay = now.Add(edited.Delay), 0
	}
	if edited.Queue != j.Queue {
		if err := s.admitQueues(map[string]int64{edited.Queue: 1}); err != nil {
			return err
		}
	}
	if edited.Unique != j.Unique && s.holds(edited.UID, edited.Unique, now) != nil {
		return queue.Errorf(queue.CodeExists, "another job has the key")
	}
	if edited.After != nil {
		if err := s.rewire(j, &edited); err != nil {
			return err
		}
	}
	runAt, renamed := j.RunAt, !slices.Equal(j.Demands, edited.Demands)
	j.Job = edited
	if renamed {
		s.word(j, j, now)
	}
	if j.RunAt != runAt {
		j.DueAt, j.asleep = j.RunAt, j.RunAt > now
		s.place(j, max(now, j.RunAt), s.enqueued)
	} else {
		s.place(j, j.Since, j.Arrival)
	}
	return nil
}

// holder returns the job that has a unique key and has not ended or, if all have ended, the one that ended
// last.
func (s *Store) holder(uid int, key string) (found *job) {
	for _, j := range s.all() {
		if key != "" && j.UID == uid && j.Unique == key && (found == nil || !j.State.Ended() || found.State.Ended() && j.EndedAt >= found.EndedAt) {
			found = j
		}
	}
	return found
}

// holds returns the job that prevents others from using a unique key at this time.
func (s *Store) holds(uid int, key string, now queue.Millis) *job {
	if j := s.holder(uid, key); j != nil && (!j.State.Ended() || j.EndedAt.Add(j.UniqueFor) > now) {
		return j
	}
	return nil
}

// giveWay cancels a job that is replaced by another job with its unique key.
func (s *Store) giveWay(j *job, now queue.Millis) {
	s.move(j, queue.Cancelled, now)
	j.Reason = queue.ReasonReplaced
	s.tell(j, queue.EventCancelled, queue.EventDetail{Reason: queue.ReasonReplaced}, now)
}

// conflict returns the job to be returned instead of storing a draft.
func (s *Store) conflict(draft *queue.Job, now queue.Millis) (*job, error) {
	j := s.holds(draft.UID, draft.Unique, now)
	switch {
	case j == nil || draft.OnConflict == queue.ConflictReturn:
		return j, nil
	case draft.OnConflict == queue.ConflictReplace && j.State.Waiting() && !j.leased:
		return nil, nil // cancelled later, when the request can no longer be rejected
	}
	e := queue.Errorf(queue.CodeExists, "job %s has the key", j.ID)
	e.Field = "unique"
	return nil, e
}

// admitQueues returns an error if new jobs exceed a queue's limit on waiting jobs.
func (s *Store) admitQueues(of map[string]int64) error {
	for name, n := range of {
		for _, j := range s.jobs {
			if j.Queue == name && j.State.Waiting() {
				n++
			}
		}
		if most := s.rule(name).MaxPending; most > 0 && n > most {
			return queue.Errorf(queue.CodeFull, "queue %s is full", name)
		}
	}
	return nil
}

// exists reports whether a queue has a rule, or jobs that have not ended.
func (s *Store) exists(name string) bool {
	if _, ruled := s.queues[name]; ruled {
		return true
	}
	for _, j := range s.jobs {
		if j.Queue == name && (j.State.Waiting() || j.leased) {
			return true
		}
	}
	return false
}

// begins returns those of the given queues that do not exist yet.
func (s *Store) begins(of map[string]int64) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if !s.exists(name) {
			names = append(names, name)
		}
	}
	return names
}

// admitNew returns an error if a user would begin too many queues.
func (s *Store) admitNew(uid int, of map[string]int64) error {
	n := len(s.begins(of))
	if n == 0 {
		return nil
	}
	for name, maker := range s.makers {
		if _, ruled := s.queues[name]; maker == uid && !ruled && s.exists(name) {
			n++
		}
	}
	if n > store.MaxQueues {
		return queue.Errorf(queue.CodeFull, "the user has %d queues", store.MaxQueues)
	}
	return nil
}

// perQueue counts jobs by queue.
func perQueue(jobs []queue.Job) map[string]int64 {
	of := map[string]int64{}
	for i := range jobs {
		of[jobs[i].Queue]++
	}
	return of
}

// remove deletes a job and its history.
func (s *Store) remove(j *job) {
	for _, a := range j.attempts {
		if a.OutputRef != "" {
			s.garbage = append(s.garbage, a.OutputRef)
		}
	}
	delete(s.jobs, j.Seq)
	s.watchers.Tell(j.Seq)
}

func (s *Store) find(seq int64) (*job, error) {
	if j := s.jobs[seq]; j != nil {
		return j, nil
	}
	return nil, queue.ErrNotFound
}
