package rules

import (
	"errors"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// enqueueFunc enqueues a draft as a job. If it returns an error, it has changed nothing.
type enqueueFunc = func(draft queue.Job) (seq int64, id string, err error)

// RunOccurrences enqueues the jobs of a schedule's occurrences (planned starts), and records the outcomes;
// see store.Schedules. It calls enqueue for each new job. See docs/decisions/0022.
func (r *Rules) RunOccurrences(
	request *store.OccurrenceRequest, enqueue enqueueFunc,
) (result store.OccurrenceResult, err error) {
	s, err := r.tx.Schedule(request.ScheduleName)
	if err != nil || s.Generation != request.Generation || s.OwnerUID < 0 || s.IsDamaged {
		return result, err
	}
	if request.RequestedByUID == nil &&
		(s.PausedAt != 0 || s.LastOccurrenceAt != request.ExpectedLastOccurrenceAt ||
			s.LastBootID != request.ExpectedLastBootID) {
		return result, nil
	}
	unfinished, err := r.tx.UnfinishedJobs(request.ScheduleName, s.OwnerUID, store.MaxUnfinishedJobsPerSchedule)
	r.recordErr(err)
	// Ignore jobs of the uid's former owner. Such a job keeps the uid until DisownJob gives it another one.
	unfinished = slices.DeleteFunc(unfinished, func(j Job) bool { return r.tx.FormerOwnerUID(j.UID, j.Seq) != 0 })
	b := occurrenceEnqueuer{Rules: r, request: request, schedule: &s, unfinishedCount: len(unfinished), enqueue: enqueue}
	if len(unfinished) > 0 {
		b.newestUnfinishedSeq, b.newestUnfinishedID = unfinished[0].Seq, unfinished[0].ID
	}
	if len(request.OccurrencesToRun) > 0 && s.Overlap == store.OverlapReplace {
		b.unfinishedCount, b.newestUnfinishedSeq, b.jobsToReplace = 0, 0, unfinished
		for i := range unfinished {
			if r.tx.Lease(unfinished[i].Seq) != nil {
				result.JobSeqsToCancel = append(result.JobSeqsToCancel, unfinished[i].Seq)
			}
		}
		if len(result.JobSeqsToCancel) > 0 {
			if err := b.checkForRejection(); err != nil || b.rejectionErr == nil {
				return result, err
			}
			result.JobSeqsToCancel = nil
		}
	}
	r.recordMissedOccurrences(request)
	for _, at := range request.OccurrencesToRun {
		run, err := b.runOccurrence(at, request.FailIfOverQuota && len(result.Records) == 0)
		if err != nil {
			return result, err
		}
		result.Records = append(result.Records, run)
	}
	result.RequestCarriedOut = true
	if request.RequestedByUID != nil {
		return result, r.err
	}
	s.LastOccurrenceAt, s.NextOccurrenceAt, s.NextDueAt, s.LastBootID = request.NewLastOccurrenceAt,
		request.NewNextOccurrenceAt,
		request.NewNextDueAt, request.NewLastBootID
	r.recordErr(r.tx.SetScheduleState(&s))
	return result, r.err
}

// recordMissedOccurrences records the occurrences that were missed, and adds one event for all of them.
func (r *Rules) recordMissedOccurrences(request *store.OccurrenceRequest) {
	if len(request.MissedOccurrences) == 0 {
		return
	}
	for _, at := range request.MissedOccurrences {
		r.recordErr(r.tx.AddOccurrenceRecord(request.ScheduleName,
			store.OccurrenceRecord{OccurrenceAt: at, Outcome: store.OccurrenceMissed}))
	}
	detail := queue.EventDetail{ScheduleName: request.ScheduleName,
		OccurrenceAt:      request.MissedOccurrences[len(request.MissedOccurrences)-1],
		MissedOccurrences: len(request.MissedOccurrences)}
	r.recordErr(r.tx.AddEvent(queue.EventScheduleMissed, &queue.Job{}, 0, encodeEventDetail(detail)))
}

// occurrenceEnqueuer handles the occurrences of one OccurrenceRequest.
type occurrenceEnqueuer struct {
	*Rules
	request             *store.OccurrenceRequest
	schedule            *store.Schedule
	unfinishedCount     int   // number of the schedule's unfinished jobs
	newestUnfinishedSeq int64 // seq of the newest unfinished job; 0 if all have ended
	newestUnfinishedID  string
	enqueuedNewestJob   bool  // this call enqueued the newest job, so the next job depends on it
	jobsToReplace       []Job // unfinished jobs that the next job replaces
	rejectionErr        error // why this call cannot enqueue a job; nil if it can
	enqueue             enqueueFunc
}

// runOccurrence enqueues the job of one occurrence and returns a record of the outcome. If the job is
// rejected, the record says so. But it returns an error instead if a user requested the run, if the store
// accepts no jobs now, or if failIfOverQuota is true and the user's quota is exceeded.
func (e *occurrenceEnqueuer) runOccurrence(plannedAt queue.UnixMillis, failIfOverQuota bool) (store.OccurrenceRecord,
	error) {
	run := store.OccurrenceRecord{OccurrenceAt: plannedAt, Outcome: store.OccurrenceEnqueued,
		RequestedByUID: e.request.RequestedByUID}
	kind := queue.EventScheduleEnqueued
	var j Job
	var rejection *queue.Error
	err := e.enqueueOccurrence(plannedAt, &j)
	var overQuota *store.QuotaError
	switch {
	case failIfOverQuota && errors.As(err, &overQuota):
		return run, err
	case err == nil:
		run.JobSeq, run.JobID = j.Seq, j.ID
	case !errors.As(err, &rejection) || e.request.RequestedByUID != nil ||
		rejection.Code == queue.CodeNoSpace || rejection.Code == queue.CodeUnavailable:
		return run, err
	default:
		run.Outcome, kind = store.OccurrenceRefused, queue.EventScheduleSkipped
		run.OutcomeNote = queue.ClipJSON(rejection.Error(), queue.MaxErrorBytes)
		if rejection.Code == queue.CodeWrongState {
			run.Outcome, run.OutcomeNote = store.OccurrenceSkipped, e.newestUnfinishedID
		}
	}
	e.recordErr(e.tx.AddOccurrenceRecord(e.request.ScheduleName, run))
	detail := encodeEventDetail(queue.EventDetail{ScheduleName: e.request.ScheduleName, OccurrenceAt: plannedAt,
		CausedByUID: e.request.RequestedByUID})
	e.recordErr(e.tx.AddEvent(kind, &j.Job, j.State, detail))
	return run, e.err
}

// enqueueOccurrence enqueues the job of an occurrence, and sets the seq, id and state of j. It returns an
// error if the job is rejected.
func (e *occurrenceEnqueuer) enqueueOccurrence(plannedAt queue.UnixMillis, j *Job) error {
	draft, ownParents := e.newDraft(), len(e.schedule.JobDraft.DependsOn)
	switch {
	case e.rejectionErr != nil:
		return e.rejectionErr
	case e.unfinishedCount >= store.MaxUnfinishedJobsPerSchedule:
		return queue.Errorf(queue.CodeQueueFull,
			"schedule %s has %d unfinished jobs, the maximum; wait until some have ended, or cancel them",
			e.schedule.Name, e.unfinishedCount)
	case e.newestUnfinishedSeq == 0:
	case e.enqueuedNewestJob || e.schedule.Overlap == store.OverlapQueue:
		draft.DependsOn = append(draft.DependsOn, queue.Dependency{ParentSeq: e.newestUnfinishedSeq,
			Condition: queue.ParentEnded})
		if ownParents == 0 {
			draft.OnDependencyFailure = queue.DependencyFailureRun
		}
	default:
		return queue.Errorf(queue.CodeWrongState,
			"job %s of schedule %s has not ended, and the schedule uses --overlap skip; "+
				"wait for the job, or cancel it first", e.newestUnfinishedID, e.schedule.Name)
	}
	for n := 1; draft.ID == ""; n++ {
		id := e.request.CandidateJobID(plannedAt, n)
		taken, err := e.tx.IsJobIDTaken(id)
		switch {
		case err != nil:
			return err
		case !taken:
			draft.ID = id
		case n == store.MaxCandidateJobIDs:
			return queue.Errorf(queue.CodeExists, "the ids for this run of the schedule are all used by other jobs; "+
				"remove one of them, for example: queuectl rm %s", id)
		}
	}
	seq, id, err := e.enqueueAndCancelReplaced(draft)
	if err != nil {
		return err
	}
	j.Seq, j.ID, j.State = seq, id, queue.Pending
	if len(draft.DependsOn) > 0 {
		j.State = queue.Blocked
	}
	e.newestUnfinishedSeq, e.newestUnfinishedID, e.enqueuedNewestJob = seq, id, true
	e.unfinishedCount++
	return nil
}

// newDraft returns the job to be enqueued for an occurrence.
func (e *occurrenceEnqueuer) newDraft() queue.Job {
	draft := e.schedule.JobDraft
	draft.UID, draft.Schedule, draft.DependsOn = e.schedule.OwnerUID, e.schedule.Name, slices.Clone(draft.DependsOn)
	return draft
}

// enqueueAndCancelReplaced enqueues a draft and cancels the jobs that it replaces. If the draft is rejected, these
// jobs are not cancelled.
func (e *occurrenceEnqueuer) enqueueAndCancelReplaced(draft queue.Job) (seq int64, id string, err error) {
	if len(e.jobsToReplace) == 0 {
		return e.enqueue(draft)
	}
	err = e.tx.WithSavepoint(func() error {
		bytesBefore := e.HookBytesUsed
		for i := range e.jobsToReplace {
			// The hooks of the previous job may have changed this job, so read it again.
			j, err := e.tx.Job(e.jobsToReplace[i].Seq, ReadScopeSummary)
			if err != nil {
				return err
			}
			j.Reason = queue.ReasonReplaced
			e.MoveToState(&j, queue.Cancelled, queue.EventCancelled, replacedEventDetail)
			if err := CheckReplacedHookBytes(i+1, e.HookBytesUsed-bytesBefore); err != nil {
				return err
			}
		}
		seq, id, err = e.enqueue(draft)
		return err
	})
	if err == nil {
		e.jobsToReplace = nil
	}
	return seq, id, err
}

// MaxReplacedHookBytes limits the bytes that are read and written for the hooks of the jobs that one request replaces.
// A request that replaces only one job may exceed this limit.
const MaxReplacedHookBytes = 8 << 20

// CheckReplacedHookBytes returns an error if a request replaces several jobs whose hooks together need more than
// MaxReplacedHookBytes.
func CheckReplacedHookBytes(jobCount, hookBytes int) error {
	if jobCount > 1 && hookBytes > MaxReplacedHookBytes {
		return queue.Errorf(queue.CodeQueueFull, "the hooks of the jobs to be replaced are larger than %d MiB in total; "+
			"replace fewer jobs per request, or cancel the jobs first", MaxReplacedHookBytes>>20)
	}
	return nil
}

// errUndoDryRun makes Savepoints.WithSavepoint undo the changes of a dry run.
var errUndoDryRun = errors.New("dry run")

// checkForRejection checks with a dry run whether the new job would be rejected even if the jobs that it replaces had
// ended. If so, it stores the reason in e.rejectionErr, and the caller need not end these jobs.
func (e *occurrenceEnqueuer) checkForRejection() error {
	err := e.tx.WithSavepoint(func() error {
		if _, _, err := e.enqueue(e.newDraft()); err != nil {
			return err
		}
		return errUndoDryRun
	})
	var rejection *queue.Error
	switch {
	case err == errUndoDryRun:
		return nil
	case !errors.As(err, &rejection):
		return err
	// The replaced jobs have the unique key only until they end, so the new job is not rejected.
	case rejection.Code == queue.CodeExists && e.schedule.JobDraft.UniqueFor == 0:
		return nil
	}
	e.rejectionErr = err
	return nil
}
