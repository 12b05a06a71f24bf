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

func noScheduleError(name string) error {
	return queue.Errorf(queue.CodeNotFound, "there is no schedule %s", name)
}

// PutSchedule implements store.Schedules.
func (s *Store) PutSchedule(ctx context.Context, request store.SchedulePut) (newSchedule store.Schedule, err error) {
	err = s.update(ctx, func(now queue.Millis) error {
		known := s.schedules[request.Name]
		if known == nil && request.ReplacedGeneration != 0 || known != nil && known.Generation != request.ReplacedGeneration {
			return store.ErrScheduleChanged
		}
		ofUser := 0
		for name, other := range s.schedules {
			if other.UID == request.UID && name != request.Name {
				ofUser++
			}
		}
		if ofUser >= store.MaxSchedules {
			return store.ErrTooManySchedules
		}
		more := scheduleBytes(&request.Schedule)
		if known != nil && known.UID == request.UID {
			more -= scheduleBytes(&known.Schedule)
		}
		if err := s.admitBytes(request.UID, more, request.MaxBytesPerUser); err != nil {
			return err
		}
		first := copyJob(request.Draft)
		if err := s.checkDependencies([]queue.Job{first}, request.UID); err != nil {
			return err
		}
		s.generationCount++
		newSchedule = request.Schedule
		newSchedule.Generation = s.generationCount
		created := &schedule{Schedule: copySchedule(newSchedule)}
		if known != nil {
			created.occurrenceRecords = known.occurrenceRecords
		}
		s.schedules[request.Name] = created
		s.hintIfDueEarlier(request.DueAt)
		s.addEvent(&job{}, queue.EventScheduleAdded,
			queue.EventDetail{UID: &request.RequestedBy, Schedule: request.Name}, now)
		return nil
	})
	return newSchedule, err
}

// hintIfDueEarlier sends a hint if a schedule is due before nextDueAt, so that Promote is called in time.
// dueAt is 0 if the schedule is never due.
func (s *Store) hintIfDueEarlier(dueAt queue.Millis) {
	if dueAt != 0 && dueAt < s.nextDueAt {
		queue.TrySend(s.promoteHints, struct{}{})
	}
}

// copySchedule returns a deep copy of a schedule.
func copySchedule(s store.Schedule) store.Schedule {
	s.Draft = copyJob(s.Draft)
	if s.PausedBy != nil {
		by := *s.PausedBy
		s.PausedBy = &by
	}
	return s
}

// Schedule returns a schedule and its newest occurrence records.
func (s *Store) Schedule(ctx context.Context, name string) (result store.Schedule, occurrences []store.OccurrenceRecord,
	err error) {
	err = s.read(ctx, func() error {
		known := s.schedules[name]
		if known == nil {
			return noScheduleError(name)
		}
		result, occurrences = copySchedule(known.Schedule), slices.Clone(known.occurrenceRecords)
		slices.Reverse(occurrences)
		return nil
	})
	return result, occurrences, err
}

// Schedules lists up to limit schedules whose name comes after the given one, ordered by name.
func (s *Store) Schedules(ctx context.Context, afterName string, limit int) (schedules []store.Schedule, err error) {
	err = s.read(ctx, func() error {
		for _, name := range slices.Sorted(maps.Keys(s.schedules)) {
			if name > afterName && len(schedules) < limit {
				one := copySchedule(s.schedules[name].Schedule)
				one.Draft.Env, one.Draft.Stdin, one.Spec = nil, "", ""
				schedules = append(schedules, one)
			}
		}
		return nil
	})
	return schedules, err
}

// RemoveSchedule deletes a schedule and its occurrence records.
func (s *Store) RemoveSchedule(ctx context.Context, name string, generation int64, byUID int) error {
	return s.update(ctx, func(now queue.Millis) error {
		known := s.schedules[name]
		switch {
		case known == nil:
			return noScheduleError(name)
		case known.Generation != generation:
			return store.ErrScheduleChanged
		}
		delete(s.schedules, name)
		s.addEvent(&job{}, queue.EventScheduleRemoved, queue.EventDetail{UID: &byUID, Schedule: name}, now)
		return nil
	})
}

// PauseSchedule pauses or resumes a schedule.
func (s *Store) PauseSchedule(ctx context.Context, p store.SchedulePause) error {
	return s.update(ctx, func(now queue.Millis) error {
		known := s.schedules[p.Name]
		switch {
		case known == nil:
			return noScheduleError(p.Name)
		case known.Generation != p.Generation:
			return store.ErrScheduleChanged
		}
		detail := queue.EventDetail{UID: p.RequestedBy, Schedule: p.Name, Target: p.Note}
		if p.Pause && known.PausedAt == 0 {
			known.PausedAt, known.PausedBy, known.Note, known.NextAt, known.DueAt = now, p.RequestedBy, p.Note, 0, 0
			s.addEvent(&job{}, queue.EventSchedulePaused, detail, now)
		}
		if !p.Pause && known.PausedAt != 0 {
			known.PausedAt, known.PausedBy, known.Note = 0, nil, ""
			known.LastAt, known.NextAt, known.DueAt, known.BootID = max(known.LastAt, p.LastAt), p.NextAt, p.DueAt, p.BootID
			s.hintIfDueEarlier(p.DueAt)
			s.addEvent(&job{}, queue.EventScheduleResumed, detail, now)
		}
		return nil
	})
}

// DueSchedules lists up to limit due schedules. untilNext is the time until another schedule is due.
func (s *Store) DueSchedules(ctx context.Context, bootID string, limit int) (
	dueSchedules []store.Schedule, untilNext time.Duration, err error) {
	err = s.read(ctx, func() error {
		now := s.now()
		untilNext = time.Hour
		for _, name := range slices.Sorted(maps.Keys(s.schedules)) {
			one := &s.schedules[name].Schedule
			switch {
			case one.PausedAt != 0:
			case one.AtBoot && bootID != "" && one.BootID != bootID, one.DueAt != 0 && one.DueAt <= now:
				dueSchedules = append(dueSchedules, copySchedule(*one))
			case one.DueAt != 0:
				untilNext = min(untilNext, time.Duration(one.DueAt-now)*time.Millisecond)
			}
		}
		slices.SortStableFunc(dueSchedules, func(a, b store.Schedule) int { return int(a.DueAt - b.DueAt) })
		dueSchedules = sortByTurns(dueSchedules)
		if len(dueSchedules) >= limit {
			dueSchedules, untilNext = dueSchedules[:limit], 0
		}
		return nil
	})
	return dueSchedules, untilNext, err
}

// sortByTurns sorts schedules so that their users take turns.
func sortByTurns(schedules []store.Schedule) (sortedSchedules []store.Schedule) {
	for len(schedules) > 0 {
		seen := map[int]bool{}
		schedules = slices.DeleteFunc(schedules, func(s store.Schedule) bool {
			first := !seen[s.UID]
			if seen[s.UID] = true; first {
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
	err = s.update(ctx, func(now queue.Millis) error {
		known := s.schedules[request.Name]
		if known == nil {
			return noScheduleError(request.Name)
		}
		expected := known.PausedAt == 0 && known.LastAt == request.ExpectedLastAt && known.BootID == request.ExpectedBootID
		if known.Generation != request.Generation || known.UID < 0 || request.RequestedBy == nil && !expected {
			return nil
		}
		var unfinishedJobs []*job
		for _, j := range s.jobsBySeq() {
			if j.Schedule == request.Name && j.UID == known.UID && j.disownToUID == 0 && !j.State.Ended() {
				unfinishedJobs = append(unfinishedJobs, j)
			}
		}
		var replacedJobs []*job
		var rejection error
		if len(request.Occurrences) > 0 && known.Overlap == store.OverlapReplace {
			replacedJobs, unfinishedJobs = unfinishedJobs, nil
			for _, j := range replacedJobs {
				if j.isLeased {
					result.LeasedSeqs = append([]int64{j.Seq}, result.LeasedSeqs...)
				}
			}
			if len(result.LeasedSeqs) > 0 {
				if rejection = s.checkCreate(known, &request, now); rejection == nil ||
					errors.Is(rejection, queue.ErrExists) && known.Draft.UniqueFor == 0 {
					return nil
				}
				result.LeasedSeqs = nil
			}
		}
		checkCreate := func() error {
			return cmp.Or(rejection, s.withoutJobs(replacedJobs, now,
				func() error { return s.checkCreate(known, &request, now) }))
		}
		if request.RequestedBy != nil && len(request.Occurrences) > 0 {
			if err := s.checkRun(known, unfinishedJobs, checkCreate); err != nil {
				return err
			}
		}
		var quotaErr *store.QuotaError
		canStart := len(unfinishedJobs) == 0 ||
			known.Overlap != store.OverlapSkip && len(unfinishedJobs) < store.MaxUnfinishedJobs
		if request.FailOverQuota && len(request.Occurrences) > 0 && canStart && errors.As(checkCreate(), &quotaErr) {
			return quotaErr
		}
		for i, at := range request.MissedOccurrences {
			s.recordRun(known, store.OccurrenceRecord{OccurrenceAt: at, Outcome: store.OutcomeMissed}, now)
			if i == len(request.MissedOccurrences)-1 {
				s.addEvent(&job{}, queue.EventScheduleMissed, queue.EventDetail{
					Schedule: request.Name, OccurrenceAt: at, Count: len(request.MissedOccurrences),
				}, now)
			}
		}
		s.runOccurrences(known, &request, unfinishedJobs, replacedJobs, checkCreate, &result.Records, now)
		if result.CarriedOut = true; request.RequestedBy == nil {
			known.LastAt, known.NextAt, known.DueAt, known.BootID =
				request.LastAt, request.NextAt, request.DueAt, request.NextBootID
		}
		return nil
	})
	return result, err
}

// runOccurrences creates the jobs of the occurrences in request.Occurrences. It cancels replacedJobs before
// it creates the first job.
func (s *Store) runOccurrences(storedSchedule *schedule, request *store.OccurrenceRequest,
	unfinishedJobs, replacedJobs []*job, checkCreate func() error, newRecords *[]store.OccurrenceRecord,
	now queue.Millis) {
	unfinishedBefore := len(unfinishedJobs)
	for _, at := range request.Occurrences {
		if len(replacedJobs) > 0 && checkCreate() == nil {
			for _, j := range replacedJobs {
				s.cancelReplaced(j, now)
			}
			replacedJobs = nil
		}
		run, created := s.runOccurrence(storedSchedule, request, at, unfinishedJobs, unfinishedBefore, checkCreate, now)
		if unfinishedJobs = append(unfinishedJobs, created...); created == nil {
			created = []*job{{}}
		}
		s.recordRun(storedSchedule, run, now)
		run.RecordedAt = 0
		*newRecords = append(*newRecords, run)
		kind := queue.EventScheduleEnqueued
		if run.Outcome != store.OutcomeEnqueued {
			kind = queue.EventScheduleSkipped
		}
		s.addEvent(created[0], kind,
			queue.EventDetail{Schedule: request.Name, OccurrenceAt: at, UID: request.RequestedBy}, now)
	}
}

// checkRun returns an error if a user starts the schedule now, but its job cannot be created. It changes
// nothing.
func (s *Store) checkRun(storedSchedule *schedule, unfinishedJobs []*job, checkCreate func() error) error {
	if len(unfinishedJobs) > 0 && storedSchedule.Overlap == store.OverlapSkip {
		return queue.Errorf(queue.CodeWrongState, "job %s has not ended", unfinishedJobs[len(unfinishedJobs)-1].ID)
	}
	if len(unfinishedJobs) >= store.MaxUnfinishedJobs && storedSchedule.Overlap == store.OverlapQueue {
		return queue.Errorf(queue.CodeQueueFull, "the schedule has too many unfinished jobs")
	}
	return checkCreate()
}

// checkCreate returns an error if the next job of a schedule cannot be created, for example because of a limit.
func (s *Store) checkCreate(storedSchedule *schedule, request *store.OccurrenceRequest, now queue.Millis) error {
	draft := copyJob(storedSchedule.Draft)
	draft.UID = storedSchedule.UID
	counts := map[string]int64{draft.Queue: 1}
	if err := cmp.Or(s.admitJobs(1, request.MaxPending), s.admitUser(storedSchedule.UID, 1, request.MaxPendingPerUser),
		s.admitBytes(storedSchedule.UID, storedBytes(&draft), request.MaxBytesPerUser), s.admitQueues(counts),
		s.admitNewQueues(storedSchedule.UID, counts),
		s.checkDependencies([]queue.Job{draft}, storedSchedule.UID)); err != nil {
		return err
	}
	holder, err := s.resolveKeyConflict(&draft, now)
	if err == nil && holder != nil {
		err = queue.Errorf(queue.CodeExists, "job %s already has the unique key of the schedule's job", holder.ID)
	}
	return err
}

// withoutJobs calls f with the given jobs treated as cancelled, and then restores the jobs.
func (s *Store) withoutJobs(excludedJobs []*job, now queue.Millis, f func() error) error {
	for _, j := range excludedJobs {
		saved := j.Job
		defer func() { j.Job = saved }()
		j.State, j.EndedAt = queue.Cancelled, now
	}
	return f()
}

// recordRun adds a record of an occurrence to the schedule.
func (s *Store) recordRun(storedSchedule *schedule, record store.OccurrenceRecord, now queue.Millis) {
	record.RecordedAt = now
	storedSchedule.occurrenceRecords = append(storedSchedule.occurrenceRecords, record)
	storedSchedule.occurrenceRecords = storedSchedule.occurrenceRecords[max(0,
		len(storedSchedule.occurrenceRecords)-store.MaxOccurrenceRecords):]
}

// runOccurrence creates the job of an occurrence. If it creates no job, record contains the reason.
// unfinishedBefore is the number of the schedule's unfinished jobs before the current call of RunOccurrences.
func (s *Store) runOccurrence(storedSchedule *schedule, request *store.OccurrenceRequest, occurrenceAt queue.Millis,
	unfinishedJobs []*job, unfinishedBefore int, checkCreate func() error, now queue.Millis) (
	record store.OccurrenceRecord, createdJobs []*job) {
	record = store.OccurrenceRecord{OccurrenceAt: occurrenceAt, Outcome: store.OutcomeEnqueued,
		RequestedBy: request.RequestedBy}
	refuse := func(outcome store.Outcome, note string) (store.OccurrenceRecord, []*job) {
		record.Outcome, record.Note = outcome, note
		return record, nil
	}
	draft := copyJob(storedSchedule.Draft)
	draft.UID, draft.Schedule = storedSchedule.UID, storedSchedule.Name
	if len(unfinishedJobs) >= store.MaxUnfinishedJobs {
		return refuse(store.OutcomeRefused, "the schedule has too many unfinished jobs")
	}
	if len(unfinishedJobs) > 0 {
		newest := unfinishedJobs[len(unfinishedJobs)-1]
		if len(unfinishedJobs) == unfinishedBefore && storedSchedule.Overlap == store.OverlapSkip {
			return refuse(store.OutcomeSkipped, newest.ID)
		}
		if len(draft.DependsOn) == 0 {
			draft.OnDependencyFailure = queue.DependencyFailureRun
		}
		draft.DependsOn = append(draft.DependsOn, queue.Dependency{JobSeq: newest.Seq, Condition: queue.ParentEnded})
	}
	if err := checkCreate(); err != nil {
		return refuse(store.OutcomeRefused, err.Error())
	}
	if err := s.resolveParents([]queue.Job{draft}, storedSchedule.UID); err != nil {
		return refuse(store.OutcomeRefused, err.Error())
	}
	for n := 1; n <= store.MaxCandidateIDs; n++ {
		draft.ID = request.CandidateID(occurrenceAt, n)
		receipt, err := s.assignIDs([]queue.Job{draft})
		if err != nil {
			continue // the id is taken, so try the next one
		}
		s.noteOwner(store.Request{UID: storedSchedule.UID, Owner: request.Owner})
		draft.Seq = receipt.Seqs[0]
		s.lastSeq = max(s.lastSeq, draft.Seq)
		if j := s.keyHolder(draft.UID, draft.Unique, now); j != nil && j.State.Waiting() {
			s.cancelReplaced(j, now)
		}
		s.insert(draft, storedSchedule.UID, now)
		record.JobSeq, record.JobID = draft.Seq, draft.ID
		return record, []*job{s.jobs[draft.Seq]}
	}
	return refuse(store.OutcomeRefused, "all ids for this run are used by other jobs")
}
