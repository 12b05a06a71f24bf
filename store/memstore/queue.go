package memstore

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Enqueue stores all jobs of a request, or none.
func (s *Store) Enqueue(ctx context.Context, r store.EnqueueRequest) (receipt store.Receipt, err error) {
	err = s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		receipt, err = s.enqueueOncePerKey(r, now)
		return err
	})
	return receipt, err
}

func (s *Store) enqueueOncePerKey(r store.EnqueueRequest, now queue.UnixMillis) (store.Receipt, error) {
	k := requestKey{r.UID, r.IdempotencyKey}
	if m, found := s.storedReceipts[k]; found && r.IdempotencyKey != "" {
		if m.requestChecksum != r.RequestChecksum {
			return store.Receipt{}, &queue.Error{Code: queue.CodeExists, Field: "key",
				Message: "the key was already used for another request; use a new key"}
		}
		found := m.receipt
		found.IDs, found.Seqs, found.Duplicate = slices.Clone(found.IDs), slices.Clone(found.Seqs), true
		return found, nil
	}
	receipt, err := s.enqueueDrafts(r, now)
	if err == nil {
		s.saveOwnerName(r)
	}
	if err == nil && r.IdempotencyKey != "" {
		copied := receipt
		copied.IDs, copied.Seqs = slices.Clone(copied.IDs), slices.Clone(copied.Seqs)
		s.storedReceipts[k] = storedReceipt{now, r.RequestChecksum, copied}
	}
	return receipt, err
}

// enqueueDrafts stores the drafts of a request as jobs. If the request names an uncommitted batch, enqueueDrafts
// adds the drafts to the batch and commits it.
func (s *Store) enqueueDrafts(r store.EnqueueRequest, now queue.UnixMillis) (store.Receipt, error) {
	if b := s.findOpenBatch(r.UID, r.BatchName); b != nil && r.BatchName != "" {
		return s.commitBatch(b, r, now)
	}
	if r.BatchName != "" && s.isBatchDiscarded(r) {
		return store.Receipt{}, store.ErrBatchDiscarded
	}
	n := len(r.Drafts)
	if n == 0 || n > queue.MaxJobsPerRequest {
		return store.Receipt{}, draftCountError(n)
	}
	if err := s.checkLimitsAndDependencies(r); err != nil {
		return store.Receipt{}, err
	}
	receipt, err := s.assignIDs(r.Drafts, nil)
	if err != nil {
		return store.Receipt{}, err
	}
	receipt.CreatedQueues = s.missingQueueNames(countJobsByQueue(r.Drafts))
	last := receipt.Seqs[len(receipt.Seqs)-1]
	if err := s.findUniqueKeyConflicts(r.Drafts, &receipt, now); err != nil { // check this before the first change
		return store.Receipt{}, err
	}
	if receipt.IsExisting != nil {
		for i := range r.Drafts {
			if !receipt.IsExisting[i] && draftWaitsForItself(i, r.Drafts, receipt, len(r.Drafts)) {
				return store.Receipt{}, queue.InvalidFieldError("depends_on", "jobs would wait for each other")
			}
		}
	}
	s.lastSeq = max(s.lastSeq, last)
	for i, draft := range r.Drafts {
		if receipt.IsExisting != nil && receipt.IsExisting[i] {
			continue
		}
		if j := s.uniqueKeyHolder(draft.UID, draft.Unique, now); j != nil && j.State.IsWaiting() {
			s.cancelReplacedJob(j, now)
		}
		draft.ID, draft.Seq = receipt.IDs[i], receipt.Seqs[i]
		s.insertJob(withParentSeqs(draft, receipt), r.UID, now)
	}
	return receipt, nil
}

// checkLimitsAndDependencies returns an error if the drafts of a request exceed a limit, or if their dependencies are
// invalid.
func (s *Store) checkLimitsAndDependencies(r store.EnqueueRequest) error {
	if err := s.checkTotalWaitingLimit(int64(len(r.Drafts)), r.MaxPendingJobs); err != nil {
		return err
	}
	if err := s.checkUserWaitingLimit(r.UID, int64(len(r.Drafts)), r.MaxPendingJobsPerUser); err != nil {
		return err
	}
	if err := s.checkUserByteLimit(r.UID, sumJobBytes(r.Drafts), r.MaxBytesPerUser); err != nil {
		return err
	}
	if err := s.checkQueueWaitingLimits(countJobsByQueue(r.Drafts)); err != nil {
		return err
	}
	if err := s.checkNewQueueLimit(r.UID, countJobsByQueue(r.Drafts)); err != nil {
		return err
	}
	return s.checkDependencies(r.Drafts, r.UID, nil)
}

// findUniqueKeyConflicts finds the drafts whose unique key another job has. For each, it sets receipt.IsExisting
// and stores the id and seq of the other job in the receipt.
func (s *Store) findUniqueKeyConflicts(drafts []queue.Job, receipt *store.Receipt, now queue.UnixMillis) error {
	draftsByKey := map[string]int{}
	found := func(i int, id string, seq int64) {
		if receipt.IsExisting == nil {
			receipt.IsExisting = make([]bool, len(drafts))
		}
		receipt.IDs[i], receipt.Seqs[i], receipt.IsExisting[i] = id, seq, true
	}
	for i := range drafts {
		d := &drafts[i]
		if d.Unique == "" {
			continue
		}
		earlier, duplicate := draftsByKey[d.Unique]
		if duplicate && d.OnConflict == queue.ConflictReject {
			return queue.Errorf(queue.CodeExists, "another job of the request has the same unique key")
		}
		if duplicate && d.OnConflict == queue.ConflictReturnExisting {
			found(i, receipt.IDs[earlier], receipt.Seqs[earlier])
			continue
		}
		if !duplicate {
			other, err := s.resolveUniqueKeyConflict(d, now)
			if err != nil {
				return err
			}
			if other != nil {
				found(i, other.ID, other.Seq)
				continue
			}
		}
		draftsByKey[d.Unique] = i
	}
	return nil
}

// withParentSeqs returns a copy of a draft in which each dependency on another draft of the request contains
// the seq of that draft.
func withParentSeqs(draft queue.Job, receipt store.Receipt) queue.Job {
	draft.DependsOn = slices.Clone(draft.DependsOn)
	for k := range draft.DependsOn {
		if d := &draft.DependsOn[k]; d.ParentDraftNumber != 0 {
			d.ParentSeq, d.ParentDraftNumber = receipt.Seqs[d.ParentDraftNumber-1], 0
		}
	}
	return draft
}

func draftCountError(draftCount int) error {
	return queue.InvalidFieldError("jobs", "%d jobs given; a request may have 1 to %d", draftCount,
		queue.MaxJobsPerRequest)
}

// assignIDs chooses a seq and an id for each draft. It does not store the drafts. targetBatch is the uncommitted batch
// to which the drafts are added, or nil.
func (s *Store) assignIDs(drafts []queue.Job, targetBatch *batch) (store.Receipt, error) {
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
	seq := s.lastSeq
	for i, draft := range drafts {
		seq++
		id := draft.ID
		if id == "" {
			for taken[strconv.FormatInt(seq, 10)] {
				seq++
			}
			id = strconv.FormatInt(seq, 10)
		}
		if b := s.uncommittedBatchWithID(id); b != nil && b != targetBatch {
			name := ""
			if b.uid == draft.UID {
				name = b.name
			}
			return store.Receipt{}, errorAtDraft(store.StagedIDError(id, name), i, len(drafts))
		}
		if taken[id] {
			return store.Receipt{}, idTakenError(id, i, len(drafts))
		}
		taken[id] = true
		r.IDs, r.Seqs = append(r.IDs, id), append(r.Seqs, seq)
	}
	return r, nil
}

func idTakenError(id string, draftIndex, draftCount int) error {
	e := queue.Errorf(queue.CodeExists, "another job has the id %q; choose another id, or leave the id out", id)
	e.Field = "id"
	return errorAtDraft(e, draftIndex, draftCount)
}

// errorAtDraft adds the number of a draft to an error, if the request has several drafts.
func errorAtDraft(e *queue.Error, draftIndex, draftCount int) error {
	if draftCount > 1 {
		return e.WithBatchIndex(draftIndex + 1)
	}
	return e
}

// insertJob stores a draft, whose seq and id are set, as a job.
func (s *Store) insertJob(draft queue.Job, uid int, now queue.UnixMillis) {
	j := &job{Job: copyJob(draft)}
	if !s.queueExists(j.Queue) {
		s.queueCreatorUIDs[j.Queue] = j.UID
	}
	defer func() {
		if j.UID < 0 { // the user was disowned after the batch was committed
			s.disownJob(j, j.UID, now)
		}
	}()
	j.State = 0
	s.applyDeclaredLimits(j, nil, now)
	j.CreatedAt = now
	if j.RunAt == 0 {
		j.RunAt = now.Add(j.Delay)
	}
	j.DueAt = j.RunAt
	j.Delay = 0
	s.setRank(j, max(now, j.RunAt), s.enqueuedTotal+1)
	j.hasNeverBeenDue = j.RunAt > now
	j.onDependencyFailure, j.DependsOn, j.OnDependencyFailure, j.OnConflict = draft.OnDependencyFailure, nil, 0, 0
	j.dependencyLinks = s.newDependencyLinks(draft.DependsOn, j.Seq, j.onDependencyFailure)
	j.ParentCount = len(j.dependencyLinks)
	failed := j.hasDependencyWithStatus(store.Broken)
	first := queue.Pending
	if j.hasDependencyWithStatus(store.Unresolved) || failed {
		first = queue.Blocked
	}
	s.setState(j, first, now)
	s.addEvent(j, queue.EventEnqueued, queue.EventDetail{CausedByUID: &uid}, now)
	s.jobs[j.Seq] = j
	s.lastSeq = max(s.lastSeq, j.Seq)
	s.enqueuedTotal++
	if failed {
		s.applyResolvedDependency(j, false, now)
	}
}

// ChangeJob applies the verb of c, such as cancel, to a job.
func (s *Store) ChangeJob(ctx context.Context, seq int64, c store.JobChange) error {
	return s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		j, err := s.findJob(seq)
		if err != nil {
			return err
		}
		if j.isLeased {
			return store.ErrJobLeased
		}
		return s.applyChange(j, c, now)
	})
}

func (s *Store) applyChange(j *job, c store.JobChange, now queue.UnixMillis) error {
	to, event, acts, err := c.EffectOn(&j.Job)
	if err != nil || !acts {
		return err
	}
	if to.IsWaiting() && !j.State.IsWaiting() {
		if err := s.checkTotalWaitingLimit(1, c.MaxPendingJobs); err != nil {
			return err
		}
		if err := s.checkUserWaitingLimit(j.UID, 1, c.MaxPendingJobsPerUser); err != nil {
			return err
		}
		if err := s.checkQueueWaitingLimits(map[string]int64{j.Queue: 1}); err != nil {
			return err
		}
		if other := s.newestJobWithUniqueKey(j.UID, j.Unique); other != nil && !other.State.HasEnded() {
			return queue.Errorf(queue.CodeExists, "job %s already has the unique key", other.ID)
		}
		if !c.KeepDependantsCancelled {
			s.pendingParentStateChanges = append(s.pendingParentStateChanges,
				parentStateChange{parentSeq: j.Seq, parentRunsAgain: true})
		}
	}
	switch c.Verb {
	case queue.VerbEdit:
		if err := s.applyEdit(j, &c, now); err != nil {
			return err
		}
	case queue.VerbRemove:
		s.removeJob(j)
	case queue.VerbRetry, queue.VerbRetryDead:
		s.applyDeclaredLimits(j, nil, now)
		j.Attempts, j.Deferrals, j.Shortages, j.RunnerCrashes, j.Error, j.ExitCode, j.Signal, j.ExpiresAt = 0, 0, 0, 0, "",
			-1, 0, 0
		if c.NewTimeout != nil {
			j.Timeout = *c.NewTimeout
		}
		s.restartWaitingTime(j, now)
	case queue.VerbRelease:
		s.restartWaitingTime(j, max(now, j.RunAt))
	}
	if c.Verb != queue.VerbEdit {
		j.Reason = "" // the reason explained the previous state
	}
	switch {
	// The job has run, so its dependencies were satisfied. It must not wait for parents that run again.
	case j.State == queue.Completed, j.State == queue.Dead:
	case to == queue.Pending && j.hasDependencyWithStatus(store.Unresolved), to == queue.Failed &&
		j.hasDependencyWithStatus(store.Unresolved):
		to = queue.Blocked
	case to == queue.Blocked && !j.hasDependencyWithStatus(store.Unresolved):
		s.restartWaitingTime(j, max(now, j.RunAt))
		to = queue.Pending
	}
	if to == 0 {
		if !j.State.HasEnded() {
			s.pendingParentStateChanges = append(s.pendingParentStateChanges, parentStateChange{parentSeq: j.Seq})
		}
		j.State = 0
	} else {
		s.setState(j, to, now)
	}
	s.addEvent(j, event, queue.EventDetail{CausedByUID: &c.UID}, now)
	return nil
}

// restartWaitingTime makes a job wait as if it were enqueued at the time when it is due. If the job has
// used all its attempts, it gets one more.
func (s *Store) restartWaitingTime(j *job, dueAt queue.UnixMillis) {
	s.setRank(j, dueAt, s.enqueuedTotal)
	j.DueAt, j.hasNeverBeenDue = dueAt, dueAt > s.now()
	j.Attempts = min(j.Attempts, j.MaxAttempts-1)
}

// applyEdit changes a waiting job. Unless the start time changes, the time that the job has already waited still
// counts.
func (s *Store) applyEdit(j *job, c *store.JobChange, now queue.UnixMillis) error {
	edited := copyJob(j.Job)
	if err := c.EditJob(&edited); err != nil {
		return err
	}
	if err := s.checkUserByteLimit(j.UID, estimateJobBytes(&edited)-estimateJobBytes(&j.Job),
		c.MaxBytesPerUser); err != nil {
		return err
	}
	if err := queue.CheckDemands(edited.Demands); err != nil {
		return err
	}
	if edited.Delay != 0 {
		edited.RunAt, edited.Delay = now.Add(edited.Delay), 0
	}
	if edited.Queue != j.Queue {
		if err := s.checkQueueWaitingLimits(map[string]int64{edited.Queue: 1}); err != nil {
			return err
		}
	}
	if edited.Unique != j.Unique && s.uniqueKeyHolder(edited.UID, edited.Unique, now) != nil {
		return queue.Errorf(queue.CodeExists, "another job already has the unique key")
	}
	if edited.DependsOn != nil {
		if err := s.replaceDependencies(j, &edited); err != nil {
			return err
		}
	}
	runAt, demandsChanged := j.RunAt, !slices.Equal(j.Demands, edited.Demands)
	j.Job = edited
	if demandsChanged {
		s.applyDeclaredLimits(j, j, now)
	}
	if j.RunAt != runAt {
		j.DueAt, j.hasNeverBeenDue = j.RunAt, j.RunAt > now
		s.setRank(j, max(now, j.RunAt), s.enqueuedTotal)
	} else {
		s.setRank(j, j.AgingSince, j.ArrivalNumber)
	}
	return nil
}

// cancelReplacedJob cancels a job because a new job replaces it: one with the same unique key, or of the same
// schedule.
func (s *Store) cancelReplacedJob(j *job, now queue.UnixMillis) {
	s.setState(j, queue.Cancelled, now)
	j.Reason = queue.ReasonReplaced
	s.addEvent(j, queue.EventCancelled, queue.EventDetail{Reason: queue.ReasonReplaced}, now)
}

// resolveUniqueKeyConflict returns the job that has the unique key of a draft and is kept instead, or nil if the
// draft must be stored.
func (s *Store) resolveUniqueKeyConflict(draft *queue.Job, now queue.UnixMillis) (*job, error) {
	j := s.uniqueKeyHolder(draft.UID, draft.Unique, now)
	switch {
	case j == nil || draft.OnConflict == queue.ConflictReturnExisting:
		return j, nil
	case draft.OnConflict == queue.ConflictReplaceExisting && j.State.IsWaiting() && !j.isLeased:
		return nil, nil // the other job is cancelled later, when the request can no longer fail
	}
	e := queue.Errorf(queue.CodeExists, "job %s already has the unique key", j.ID)
	e.Field = "unique"
	return nil, e
}

// checkQueueWaitingLimits returns an error if the new jobs would exceed the limit on waiting jobs of a queue.
func (s *Store) checkQueueWaitingLimits(newJobsByQueue map[string]int64) error {
	for name, n := range newJobsByQueue {
		for _, j := range s.jobs {
			if j.Queue == name && j.State.IsWaiting() {
				n++
			}
		}
		if limit := s.queueRule(name).MaxPendingJobs; limit > 0 && n > limit {
			return queue.Errorf(queue.CodeQueueFull, "queue %s is full", name)
		}
	}
	return nil
}

// queueExists reports whether a queue has a rule, or jobs that have not ended.
func (s *Store) queueExists(name string) bool {
	if _, ruled := s.queueRules[name]; ruled {
		return true
	}
	for _, j := range s.jobs {
		if j.Queue == name && (j.State.IsWaiting() || j.isLeased) {
			return true
		}
	}
	return false
}

// missingQueueNames returns the names of those queues in newJobsByQueue that do not exist yet.
func (s *Store) missingQueueNames(newJobsByQueue map[string]int64) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(newJobsByQueue)) {
		if !s.queueExists(name) {
			names = append(names, name)
		}
	}
	return names
}

// checkNewQueueLimit returns an error if a user would create too many queues.
func (s *Store) checkNewQueueLimit(uid int, newJobsByQueue map[string]int64) error {
	n := len(s.missingQueueNames(newJobsByQueue))
	if n == 0 {
		return nil
	}
	for name, creator := range s.queueCreatorUIDs {
		if _, ruled := s.queueRules[name]; creator == uid && !ruled && s.queueExists(name) {
			n++
		}
	}
	if n > store.MaxQueuesPerUser {
		return queue.Errorf(queue.CodeQueueFull, "the user has %d queues", store.MaxQueuesPerUser)
	}
	return nil
}

func countJobsByQueue(jobs []queue.Job) map[string]int64 {
	counts := map[string]int64{}
	for i := range jobs {
		counts[jobs[i].Queue]++
	}
	return counts
}

// removeJob deletes a job and its history, and marks its output files for deletion.
func (s *Store) removeJob(j *job) {
	for _, a := range j.attempts {
		if a.OutputFileRef != "" {
			s.deletableOutputs = append(s.deletableOutputs, a.OutputFileRef)
		}
	}
	delete(s.jobs, j.Seq)
	s.jobWatchers.NotifyOfChangedJobs(j.Seq)
}

func (s *Store) findJob(seq int64) (*job, error) {
	if j := s.jobs[seq]; j != nil {
		return j, nil
	}
	return nil, queue.ErrNotFound
}
