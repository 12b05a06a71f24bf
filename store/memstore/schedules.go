package memstore

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// schedule is a stored schedule with the records of its occurrences, oldest first.
type schedule struct {
	store.Schedule
	occurrenceRecords []store.OccurrenceRecord
}

func scheduleNotFoundError(name string) error {
	return queue.Errorf(queue.CodeNotFound, "there is no schedule %s", name)
}

// PutSchedule implements store.Schedules. It stores a new schedule or replaces one.
func (s *Store) PutSchedule(ctx context.Context, request store.SchedulePutRequest) (newSchedule store.Schedule,
	err error) {
	err = s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		known := s.schedules[request.Name]
		if known == nil && request.ReplacedGeneration != 0 || known != nil && known.Generation != request.ReplacedGeneration {
			return store.ErrScheduleChanged
		}
		ofUser := 0
		for name, other := range s.schedules {
			if other.OwnerUID == request.OwnerUID && name != request.Name {
				ofUser++
			}
		}
		if ofUser >= store.MaxSchedulesPerUser {
			return store.ErrTooManySchedules
		}
		more := estimateScheduleBytes(&request.Schedule)
		if known != nil && known.OwnerUID == request.OwnerUID {
			more -= estimateScheduleBytes(&known.Schedule)
		}
		if err := s.checkUserByteLimit(request.OwnerUID, more, request.MaxBytesPerUser); err != nil {
			return err
		}
		first := copyJob(request.JobDraft)
		if err := s.checkDependencies([]queue.Job{first}, request.OwnerUID, nil); err != nil {
			return err
		}
		s.scheduleVersionCount++
		newSchedule = request.Schedule
		newSchedule.Generation = s.scheduleVersionCount
		created := &schedule{Schedule: copySchedule(newSchedule)}
		if known != nil {
			created.occurrenceRecords = known.occurrenceRecords
		}
		s.schedules[request.Name] = created
		s.sendDueChangeHintIfEarlier(request.NextDueAt)
		s.addEvent(&job{}, queue.EventScheduleAdded,
			queue.EventDetail{CausedByUID: &request.RequestedByUID, ScheduleName: request.Name}, now)
		return nil
	})
	return newSchedule, err
}

// sendDueChangeHintIfEarlier sends a hint if a schedule is due before nextDueAt, so that ApplyDueChanges is called
// in time. dueAt is 0 if the schedule is never due.
func (s *Store) sendDueChangeHintIfEarlier(dueAt queue.UnixMillis) {
	if dueAt != 0 && dueAt < s.nextDueAt {
		queue.TrySend(s.dueChangeHints, struct{}{})
	}
}

// copySchedule returns a deep copy of a schedule.
func copySchedule(s store.Schedule) store.Schedule {
	s.JobDraft = copyJob(s.JobDraft)
	if s.PausedByUID != nil {
		by := *s.PausedByUID
		s.PausedByUID = &by
	}
	return s
}

// GetSchedule returns a schedule and its newest occurrence records.
func (s *Store) GetSchedule(ctx context.Context, name string) (result store.Schedule,
	occurrences []store.OccurrenceRecord,
	err error) {
	err = s.runReadTx(ctx, func() error {
		known := s.schedules[name]
		if known == nil {
			return scheduleNotFoundError(name)
		}
		result, occurrences = copySchedule(known.Schedule), slices.Clone(known.occurrenceRecords)
		slices.Reverse(occurrences)
		return nil
	})
	return result, occurrences, err
}

// ListSchedules lists up to limit schedules whose name comes after the given one, ordered by name.
func (s *Store) ListSchedules(ctx context.Context, afterName string, limit int) (schedules []store.Schedule,
	err error) {
	err = s.runReadTx(ctx, func() error {
		for _, name := range slices.Sorted(maps.Keys(s.schedules)) {
			if name > afterName && len(schedules) < limit {
				one := copySchedule(s.schedules[name].Schedule)
				one.JobDraft.Env, one.JobDraft.Stdin, one.SpecJSON = nil, "", ""
				schedules = append(schedules, one)
			}
		}
		return nil
	})
	return schedules, err
}

// RemoveSchedule deletes a schedule and its occurrence records.
func (s *Store) RemoveSchedule(ctx context.Context, name string, generation int64, requestedByUID int) error {
	return s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		known := s.schedules[name]
		switch {
		case known == nil:
			return scheduleNotFoundError(name)
		case known.Generation != generation:
			return store.ErrScheduleChanged
		}
		delete(s.schedules, name)
		s.addEvent(&job{}, queue.EventScheduleRemoved, queue.EventDetail{CausedByUID: &requestedByUID, ScheduleName: name},
			now)
		return nil
	})
}

// PauseSchedule pauses or resumes a schedule.
func (s *Store) PauseSchedule(ctx context.Context, p store.SchedulePauseRequest) error {
	return s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		known := s.schedules[p.ScheduleName]
		switch {
		case known == nil:
			return scheduleNotFoundError(p.ScheduleName)
		case known.Generation != p.Generation:
			return store.ErrScheduleChanged
		}
		detail := queue.EventDetail{CausedByUID: p.RequestedByUID, ScheduleName: p.ScheduleName, ActionTarget: p.PauseNote}
		if p.Paused && known.PausedAt == 0 {
			known.PausedAt, known.PausedByUID, known.PauseOrDamageNote = now, p.RequestedByUID, p.PauseNote
			known.NextOccurrenceAt, known.NextDueAt = 0, 0
			s.addEvent(&job{}, queue.EventSchedulePaused, detail, now)
		}
		if !p.Paused && known.PausedAt != 0 {
			known.PausedAt, known.PausedByUID, known.PauseOrDamageNote = 0, nil, ""
			known.LastOccurrenceAt, known.NextOccurrenceAt, known.NextDueAt,
				known.LastBootID = max(known.LastOccurrenceAt, p.LastOccurrenceAt), p.NextOccurrenceAt, p.NextDueAt, p.LastBootID
			s.sendDueChangeHintIfEarlier(p.NextDueAt)
			s.addEvent(&job{}, queue.EventScheduleResumed, detail, now)
		}
		return nil
	})
}

// DueSchedules lists up to limit due schedules. untilNext is the time until another schedule is due.
func (s *Store) DueSchedules(ctx context.Context, bootID string, limit int) (
	dueSchedules []store.Schedule, untilNext time.Duration, err error) {
	err = s.runReadTx(ctx, func() error {
		now := s.now()
		untilNext = time.Hour
		for _, name := range slices.Sorted(maps.Keys(s.schedules)) {
			one := &s.schedules[name].Schedule
			switch {
			case one.PausedAt != 0:
			case one.RunsAtBoot && bootID != "" && one.LastBootID != bootID, one.NextDueAt != 0 && one.NextDueAt <= now:
				dueSchedules = append(dueSchedules, copySchedule(*one))
			case one.NextDueAt != 0:
				untilNext = min(untilNext, time.Duration(one.NextDueAt-now)*time.Millisecond)
			}
		}
		slices.SortStableFunc(dueSchedules, func(a, b store.Schedule) int { return int(a.NextDueAt - b.NextDueAt) })
		dueSchedules = sortByUserTurns(dueSchedules)
		if len(dueSchedules) >= limit {
			dueSchedules, untilNext = dueSchedules[:limit], 0
		}
		return nil
	})
	return dueSchedules, untilNext, err
}

// sortByUserTurns sorts schedules so that their users take turns.
func sortByUserTurns(schedules []store.Schedule) (sortedSchedules []store.Schedule) {
	for len(schedules) > 0 {
		seen := map[int]bool{}
		schedules = slices.DeleteFunc(schedules, func(s store.Schedule) bool {
			first := !seen[s.OwnerUID]
			if seen[s.OwnerUID] = true; first {
				sortedSchedules = append(sortedSchedules, s)
			}
			return first
		})
	}
	return sortedSchedules
}

// RunOccurrences handles occurrences (planned starts) of a schedule: it creates their jobs and records the
// outcomes.
func (s *Store) RunOccurrences(ctx context.Context, request store.OccurrenceRequest) (result store.OccurrenceResult,
	err error) {
	err = s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		known := s.schedules[request.ScheduleName]
		if known == nil {
			return scheduleNotFoundError(request.ScheduleName)
		}
		expected := known.PausedAt == 0 && known.LastOccurrenceAt == request.ExpectedLastOccurrenceAt &&
			known.LastBootID == request.ExpectedLastBootID
		if known.Generation != request.Generation || known.OwnerUID < 0 || request.RequestedByUID == nil && !expected {
			return nil
		}
		var unfinishedJobs []*job
		for _, j := range s.jobsBySeq() {
			if j.Schedule == request.ScheduleName && j.UID == known.OwnerUID && j.uidAfterLease == 0 && !j.State.HasEnded() {
				unfinishedJobs = append(unfinishedJobs, j)
			}
		}
		var replacedJobs []*job
		var rejection error
		if len(request.OccurrencesToRun) > 0 && known.Overlap == store.OverlapReplace {
			replacedJobs, unfinishedJobs = unfinishedJobs, nil
			for _, j := range replacedJobs {
				if j.isLeased {
					result.JobSeqsToCancel = append([]int64{j.Seq}, result.JobSeqsToCancel...)
				}
			}
			if len(result.JobSeqsToCancel) > 0 {
				if rejection = s.checkJobCreation(known, &request, now); rejection == nil ||
					errors.Is(rejection, queue.ErrExists) && known.JobDraft.UniqueFor == 0 {
					return nil
				}
				result.JobSeqsToCancel = nil
			}
		}
		checkCreate := func() error {
			return cmp.Or(rejection, s.callWithJobsCancelled(replacedJobs, now,
				func() error { return s.checkJobCreation(known, &request, now) }))
		}
		if request.RequestedByUID != nil && len(request.OccurrencesToRun) > 0 {
			if err := s.checkManualRun(known, unfinishedJobs, checkCreate); err != nil {
				return err
			}
		}
		var quotaErr *store.QuotaError
		canStart := len(unfinishedJobs) == 0 ||
			known.Overlap != store.OverlapSkip && len(unfinishedJobs) < store.MaxUnfinishedJobsPerSchedule
		if request.FailIfOverQuota && len(request.OccurrencesToRun) > 0 && canStart && errors.As(checkCreate(), &quotaErr) {
			return quotaErr
		}
		for i, at := range request.MissedOccurrences {
			s.addOccurrenceRecord(known, store.OccurrenceRecord{OccurrenceAt: at, Outcome: store.OccurrenceMissed}, now)
			if i == len(request.MissedOccurrences)-1 {
				s.addEvent(&job{}, queue.EventScheduleMissed, queue.EventDetail{
					ScheduleName: request.ScheduleName, OccurrenceAt: at, MissedOccurrences: len(request.MissedOccurrences),
				}, now)
			}
		}
		s.runOccurrences(known, &request, unfinishedJobs, replacedJobs, checkCreate, &result.Records, now)
		if result.RequestCarriedOut = true; request.RequestedByUID == nil {
			known.LastOccurrenceAt, known.NextOccurrenceAt, known.NextDueAt, known.LastBootID =
				request.NewLastOccurrenceAt, request.NewNextOccurrenceAt, request.NewNextDueAt, request.NewLastBootID
		}
		return nil
	})
	return result, err
}

// runOccurrences creates the jobs of the occurrences in request.Occurrences. It cancels replacedJobs before
// it creates the first job.
func (s *Store) runOccurrences(storedSchedule *schedule, request *store.OccurrenceRequest,
	unfinishedJobs, replacedJobs []*job, checkJobCreation func() error, newRecords *[]store.OccurrenceRecord,
	now queue.UnixMillis) {
	unfinishedBefore := len(unfinishedJobs)
	for _, at := range request.OccurrencesToRun {
		if len(replacedJobs) > 0 && checkJobCreation() == nil {
			for _, j := range replacedJobs {
				s.cancelReplacedJob(j, now)
			}
			replacedJobs = nil
		}
		run, created := s.runOccurrence(storedSchedule, request, at, unfinishedJobs, unfinishedBefore, checkJobCreation, now)
		if unfinishedJobs = append(unfinishedJobs, created...); created == nil {
			created = []*job{{}}
		}
		s.addOccurrenceRecord(storedSchedule, run, now)
		run.RecordedAt = 0
		*newRecords = append(*newRecords, run)
		kind := queue.EventScheduleEnqueued
		if run.Outcome != store.OccurrenceEnqueued {
			kind = queue.EventScheduleSkipped
		}
		s.addEvent(created[0], kind,
			queue.EventDetail{ScheduleName: request.ScheduleName, OccurrenceAt: at, CausedByUID: request.RequestedByUID}, now)
	}
}

// checkManualRun returns an error if a user starts the schedule now, but its job cannot be created. It changes
// nothing.
func (s *Store) checkManualRun(storedSchedule *schedule, unfinishedJobs []*job, checkJobCreation func() error) error {
	if len(unfinishedJobs) > 0 && storedSchedule.Overlap == store.OverlapSkip {
		return queue.Errorf(queue.CodeWrongState, "job %s has not ended", unfinishedJobs[len(unfinishedJobs)-1].ID)
	}
	if len(unfinishedJobs) >= store.MaxUnfinishedJobsPerSchedule && storedSchedule.Overlap == store.OverlapQueue {
		return queue.Errorf(queue.CodeQueueFull, "the schedule has too many unfinished jobs")
	}
	return checkJobCreation()
}

// checkJobCreation returns an error if the next job of a schedule cannot be created, for example because of a limit.
func (s *Store) checkJobCreation(storedSchedule *schedule, request *store.OccurrenceRequest,
	now queue.UnixMillis) error {
	draft := copyJob(storedSchedule.JobDraft)
	draft.UID = storedSchedule.OwnerUID
	counts := map[string]int64{draft.Queue: 1}
	if err := cmp.Or(s.checkTotalWaitingLimit(1, request.MaxPendingJobs),
		s.checkUserWaitingLimit(storedSchedule.OwnerUID, 1, request.MaxPendingJobsPerUser),
		s.checkUserByteLimit(storedSchedule.OwnerUID, estimateJobBytes(&draft), request.MaxBytesPerUser),
		s.checkQueueWaitingLimits(counts), s.checkNewQueueLimit(storedSchedule.OwnerUID, counts),
		s.checkDependencies([]queue.Job{draft}, storedSchedule.OwnerUID, nil)); err != nil {
		return err
	}
	holder, err := s.resolveUniqueKeyConflict(&draft, now)
	if err == nil && holder != nil {
		err = queue.Errorf(queue.CodeExists, "job %s already has the unique key of the schedule's job", holder.ID)
	}
	return err
}

// callWithJobsCancelled calls f with the given jobs treated as cancelled, and then restores the jobs.
func (s *Store) callWithJobsCancelled(cancelledJobs []*job, now queue.UnixMillis, f func() error) error {
	for _, j := range cancelledJobs {
		saved := j.Job
		defer func() { j.Job = saved }()
		j.State, j.EndedAt = queue.Cancelled, now
	}
	return f()
}

func (s *Store) addOccurrenceRecord(storedSchedule *schedule, record store.OccurrenceRecord, now queue.UnixMillis) {
	record.RecordedAt = now
	storedSchedule.occurrenceRecords = append(storedSchedule.occurrenceRecords, record)
	storedSchedule.occurrenceRecords = storedSchedule.occurrenceRecords[max(0,
		len(storedSchedule.occurrenceRecords)-store.MaxRecordsPerSchedule):]
}

// runOccurrence creates the job of an occurrence. If it creates no job, record contains the reason.
// unfinishedCountBefore is the number of the schedule's unfinished jobs before the current call of RunOccurrences.
func (s *Store) runOccurrence(storedSchedule *schedule, request *store.OccurrenceRequest, plannedAt queue.UnixMillis,
	unfinishedJobs []*job, unfinishedCountBefore int, checkJobCreation func() error, now queue.UnixMillis) (
	record store.OccurrenceRecord, createdJobs []*job) {
	record = store.OccurrenceRecord{OccurrenceAt: plannedAt, Outcome: store.OccurrenceEnqueued,
		RequestedByUID: request.RequestedByUID}
	refuse := func(outcome store.OccurrenceOutcome, note string) (store.OccurrenceRecord, []*job) {
		record.Outcome, record.OutcomeNote = outcome, note
		return record, nil
	}
	draft := copyJob(storedSchedule.JobDraft)
	draft.UID, draft.Schedule = storedSchedule.OwnerUID, storedSchedule.Name
	if len(unfinishedJobs) >= store.MaxUnfinishedJobsPerSchedule {
		return refuse(store.OccurrenceRefused, "the schedule has too many unfinished jobs")
	}
	if len(unfinishedJobs) > 0 {
		newest := unfinishedJobs[len(unfinishedJobs)-1]
		if len(unfinishedJobs) == unfinishedCountBefore && storedSchedule.Overlap == store.OverlapSkip {
			return refuse(store.OccurrenceSkipped, newest.ID)
		}
		if len(draft.DependsOn) == 0 {
			draft.OnDependencyFailure = queue.DependencyFailureRun
		}
		draft.DependsOn = append(draft.DependsOn, queue.Dependency{ParentSeq: newest.Seq, Condition: queue.ParentEnded})
	}
	if err := checkJobCreation(); err != nil {
		return refuse(store.OccurrenceRefused, err.Error())
	}
	if err := s.resolveParents([]queue.Job{draft}, storedSchedule.OwnerUID, nil); err != nil {
		return refuse(store.OccurrenceRefused, err.Error())
	}
	for n := 1; n <= store.MaxCandidateJobIDs; n++ {
		draft.ID = request.CandidateJobID(plannedAt, n)
		receipt, err := s.assignIDs([]queue.Job{draft}, nil)
		if err != nil {
			continue // the id is taken, so try the next one
		}
		s.saveOwnerName(store.EnqueueRequest{UID: storedSchedule.OwnerUID, OwnerName: request.OwnerName})
		draft.Seq = receipt.Seqs[0]
		s.lastSeq = max(s.lastSeq, draft.Seq)
		if j := s.uniqueKeyHolder(draft.UID, draft.Unique, now); j != nil && j.State.IsWaiting() {
			s.cancelReplacedJob(j, now)
		}
		s.insertJob(draft, storedSchedule.OwnerUID, now)
		record.JobSeq, record.JobID = draft.Seq, draft.ID
		return record, []*job{s.jobs[draft.Seq]}
	}
	return refuse(store.OccurrenceRefused, "all ids for this run are used by other jobs")
}
