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
	runs []store.OccurrenceRecord
}

func noScheduleError(name string) error {
	return queue.Errorf(queue.CodeNotFound, "there is no schedule %s", name)
}

// PutSchedule implements store.Schedules.
func (s *Store) PutSchedule(ctx context.Context, put store.SchedulePut) (stored store.Schedule, err error) {
	err = s.update(ctx, func(now queue.Millis) error {
		known := s.schedules[put.Name]
		if known == nil && put.ReplacedGeneration != 0 || known != nil && known.Generation != put.ReplacedGeneration {
			return store.ErrScheduleChanged
		}
		ofUser := 0
		for name, other := range s.schedules {
			if other.UID == put.UID && name != put.Name {
				ofUser++
			}
		}
		if ofUser >= store.MaxSchedules {
			return store.ErrTooManySchedules
		}
		more := scheduleBytes(&put.Schedule)
		if known != nil && known.UID == put.UID {
			more -= scheduleBytes(&known.Schedule)
		}
		if err := s.admitBytes(put.UID, more, put.MaxBytesPerUser); err != nil {
			return err
		}
		first := copyJob(put.Draft)
		if err := s.checkDependencies([]queue.Job{first}, put.UID); err != nil {
			return err
		}
		s.generations++
		stored = put.Schedule
		stored.Generation = s.generations
		created := &schedule{Schedule: copySchedule(stored)}
		if known != nil {
			created.runs = known.runs
		}
		s.schedules[put.Name] = created
		s.hintIfDueEarlier(put.DueAt)
		s.addEvent(&job{}, queue.EventScheduleAdded, queue.EventDetail{UID: &put.RequestedBy, Schedule: put.Name}, now)
		return nil
	})
	return stored, err
}

// hintIfDueEarlier sends a hint if the due time of a schedule is before nextDue. The time 0 means that the
// schedule is not due.
func (s *Store) hintIfDueEarlier(at queue.Millis) {
	if at != 0 && at < s.nextDue {
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
func (s *Store) Schedule(ctx context.Context, name string) (found store.Schedule, runs []store.OccurrenceRecord,
	err error) {
	err = s.read(ctx, func() error {
		known := s.schedules[name]
		if known == nil {
			return noScheduleError(name)
		}
		found, runs = copySchedule(known.Schedule), slices.Clone(known.runs)
		slices.Reverse(runs)
		return nil
	})
	return found, runs, err
}

// Schedules lists up to limit schedules whose name comes after the given one, ordered by name.
func (s *Store) Schedules(ctx context.Context, after string, limit int) (list []store.Schedule, err error) {
	err = s.read(ctx, func() error {
		for _, name := range slices.Sorted(maps.Keys(s.schedules)) {
			if name > after && len(list) < limit {
				one := copySchedule(s.schedules[name].Schedule)
				one.Draft.Env, one.Draft.Stdin, one.Spec = nil, "", ""
				list = append(list, one)
			}
		}
		return nil
	})
	return list, err
}

// RemoveSchedule deletes a schedule and its occurrence records.
func (s *Store) RemoveSchedule(ctx context.Context, name string, gen int64, by int) error {
	return s.update(ctx, func(now queue.Millis) error {
		known := s.schedules[name]
		switch {
		case known == nil:
			return noScheduleError(name)
		case known.Generation != gen:
			return store.ErrScheduleChanged
		}
		delete(s.schedules, name)
		s.addEvent(&job{}, queue.EventScheduleRemoved, queue.EventDetail{UID: &by, Schedule: name}, now)
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

// DueSchedules lists up to limit due schedules. It returns the time until another schedule is due.
func (s *Store) DueSchedules(ctx context.Context, boot string, limit int) (due []store.Schedule, next time.Duration,
	err error) {
	err = s.read(ctx, func() error {
		now := s.now()
		next = time.Hour
		for _, name := range slices.Sorted(maps.Keys(s.schedules)) {
			one := &s.schedules[name].Schedule
			switch {
			case one.PausedAt != 0:
			case one.AtBoot && boot != "" && one.BootID != boot, one.DueAt != 0 && one.DueAt <= now:
				due = append(due, copySchedule(*one))
			case one.DueAt != 0:
				next = min(next, time.Duration(one.DueAt-now)*time.Millisecond)
			}
		}
		slices.SortStableFunc(due, func(a, b store.Schedule) int { return int(a.DueAt - b.DueAt) })
		due = roundRobin(due)
		if len(due) >= limit {
			due, next = due[:limit], 0
		}
		return nil
	})
	return due, next, err
}

// roundRobin sorts schedules so that their users take turns.
func roundRobin(list []store.Schedule) (turns []store.Schedule) {
	for len(list) > 0 {
		seen := map[int]bool{}
		list = slices.DeleteFunc(list, func(s store.Schedule) bool {
			first := !seen[s.UID]
			if seen[s.UID] = true; first {
				turns = append(turns, s)
			}
			return first
		})
	}
	return turns
}

// RunOccurrences handles occurrences (planned starts) of a schedule: it creates their jobs and records the
// outcomes.
func (s *Store) RunOccurrences(ctx context.Context, f store.OccurrenceRequest) (fired store.OccurrenceResult,
	err error) {
	err = s.update(ctx, func(now queue.Millis) error {
		known := s.schedules[f.Name]
		if known == nil {
			return noScheduleError(f.Name)
		}
		expected := known.PausedAt == 0 && known.LastAt == f.ExpectedLastAt && known.BootID == f.ExpectedBootID
		if known.Generation != f.Generation || known.UID < 0 || f.RequestedBy == nil && !expected {
			return nil
		}
		var unfinished []*job
		for _, j := range s.jobsBySeq() {
			if j.Schedule == f.Name && !j.State.Ended() {
				unfinished = append(unfinished, j)
			}
		}
		var replaced []*job
		var rejection error
		if len(f.Occurrences) > 0 && known.Overlap == store.OverlapReplace {
			replaced, unfinished = unfinished, nil
			for _, j := range replaced {
				if j.leased {
					fired.LeasedSeqs = append([]int64{j.Seq}, fired.LeasedSeqs...)
				}
			}
			if len(fired.LeasedSeqs) > 0 {
				if rejection = s.checkCreate(known, &f, now); rejection == nil || errors.Is(rejection, queue.ErrExists) &&
					known.Draft.UniqueFor == 0 {
					return nil
				}
				fired.LeasedSeqs = nil
			}
		}
		checkCreate := func() error {
			return cmp.Or(rejection, s.withoutJobs(replaced, now, func() error { return s.checkCreate(known, &f, now) }))
		}
		if f.RequestedBy != nil && len(f.Occurrences) > 0 {
			if err := s.checkFire(known, unfinished, checkCreate); err != nil {
				return err
			}
		}
		var overQuota *store.QuotaError
		canStart := len(unfinished) == 0 || known.Overlap != store.OverlapSkip && len(unfinished) < store.MaxUnfinishedJobs
		if f.FailOverQuota && len(f.Occurrences) > 0 && canStart && errors.As(checkCreate(), &overQuota) {
			return overQuota
		}
		for i, at := range f.MissedOccurrences {
			s.recordRun(known, store.OccurrenceRecord{OccurrenceAt: at, Outcome: store.OutcomeMissed}, now)
			if i == len(f.MissedOccurrences)-1 {
				s.addEvent(&job{}, queue.EventScheduleMissed, queue.EventDetail{
					Schedule: f.Name, OccurrenceAt: at, Count: len(f.MissedOccurrences),
				}, now)
			}
		}
		s.fireOccurrences(known, &f, unfinished, replaced, checkCreate, &fired.Records, now)
		if fired.CarriedOut = true; f.RequestedBy == nil {
			known.LastAt, known.NextAt, known.DueAt, known.BootID = f.LastAt, f.NextAt, f.DueAt, f.NextBootID
		}
		return nil
	})
	return fired, err
}

// fireOccurrences creates the jobs of the occurrences in f.Occurrences. Before the first of them, it cancels the
// jobs in the list replaced.
func (s *Store) fireOccurrences(known *schedule, f *store.OccurrenceRequest, unfinished, replaced []*job,
	checkCreate func() error, runs *[]store.OccurrenceRecord, now queue.Millis) {
	unfinishedBefore := len(unfinished)
	for _, at := range f.Occurrences {
		if len(replaced) > 0 && checkCreate() == nil {
			for _, j := range replaced {
				s.cancelReplaced(j, now)
			}
			replaced = nil
		}
		run, created := s.fireOccurrence(known, f, at, unfinished, unfinishedBefore, checkCreate, now)
		if unfinished = append(unfinished, created...); created == nil {
			created = []*job{{}}
		}
		s.recordRun(known, run, now)
		run.RecordedAt = 0
		*runs = append(*runs, run)
		kind := queue.EventScheduleEnqueued
		if run.Outcome != store.OutcomeEnqueued {
			kind = queue.EventScheduleSkipped
		}
		s.addEvent(created[0], kind, queue.EventDetail{Schedule: f.Name, OccurrenceAt: at, UID: f.RequestedBy}, now)
	}
}

// checkFire returns an error if a job that a user requests from the schedule cannot be created now. It changes
// nothing.
func (s *Store) checkFire(known *schedule, unfinished []*job, checkCreate func() error) error {
	if len(unfinished) > 0 && known.Overlap == store.OverlapSkip {
		return queue.Errorf(queue.CodeWrongState, "job %s has not ended", unfinished[len(unfinished)-1].ID)
	}
	if len(unfinished) >= store.MaxUnfinishedJobs && known.Overlap == store.OverlapQueue {
		return queue.Errorf(queue.CodeQueueFull, "the schedule has too many unfinished jobs")
	}
	return checkCreate()
}

// checkCreate returns an error if the next job of a schedule cannot be created, for example because of a limit.
func (s *Store) checkCreate(known *schedule, f *store.OccurrenceRequest, now queue.Millis) error {
	draft := copyJob(known.Draft)
	draft.UID = known.UID
	counts := map[string]int64{draft.Queue: 1}
	if err := cmp.Or(s.admit(1, f.MaxPending), s.admitUser(known.UID, 1, f.MaxPendingPerUser),
		s.admitBytes(known.UID, storedBytes(&draft), f.MaxBytesPerUser), s.admitQueues(counts),
		s.admitNewQueues(known.UID, counts), s.checkDependencies([]queue.Job{draft}, known.UID)); err != nil {
		return err
	}
	holder, err := s.resolveKeyConflict(&draft, now)
	if err == nil && holder != nil {
		err = queue.Errorf(queue.CodeExists, "job %s already has the unique key of the schedule's job", holder.ID)
	}
	return err
}

// withoutJobs calls f while the given jobs count as cancelled, and then restores the jobs.
func (s *Store) withoutJobs(excluded []*job, now queue.Millis, f func() error) error {
	for _, j := range excluded {
		saved := j.Job
		defer func() { j.Job = saved }()
		j.State, j.EndedAt = queue.Cancelled, now
	}
	return f()
}

// recordRun records the outcome of an occurrence.
func (s *Store) recordRun(known *schedule, run store.OccurrenceRecord, now queue.Millis) {
	run.RecordedAt = now
	known.runs = append(known.runs, run)
	known.runs = known.runs[max(0, len(known.runs)-store.MaxOccurrenceRecords):]
}

// fireOccurrence creates the job of an occurrence. If it creates none, the result run contains the reason.
// unfinishedBefore is the number of unfinished jobs before the current call of RunOccurrences.
func (s *Store) fireOccurrence(known *schedule, f *store.OccurrenceRequest, at queue.Millis, unfinished []*job,
	unfinishedBefore int, checkCreate func() error, now queue.Millis) (run store.OccurrenceRecord, created []*job) {
	run = store.OccurrenceRecord{OccurrenceAt: at, Outcome: store.OutcomeEnqueued, RequestedBy: f.RequestedBy}
	refuse := func(outcome store.Outcome, note string) (store.OccurrenceRecord, []*job) {
		run.Outcome, run.Note = outcome, note
		return run, nil
	}
	draft := copyJob(known.Draft)
	draft.UID, draft.Schedule = known.UID, known.Name
	if len(unfinished) >= store.MaxUnfinishedJobs {
		return refuse(store.OutcomeRefused, "the schedule has too many unfinished jobs")
	}
	if len(unfinished) > 0 {
		newest := unfinished[len(unfinished)-1]
		if len(unfinished) == unfinishedBefore && known.Overlap == store.OverlapSkip {
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
	if err := s.resolveParents([]queue.Job{draft}, known.UID); err != nil {
		return refuse(store.OutcomeRefused, err.Error())
	}
	for n := 1; n <= store.MaxCandidateIDs; n++ {
		draft.ID = f.CandidateID(at, n)
		receipt, err := s.assignIDs([]queue.Job{draft})
		if err != nil {
			continue // the id is taken, so try the next one
		}
		s.noteOwner(store.Request{UID: known.UID, Owner: f.Owner})
		draft.Seq = receipt.Seqs[0]
		s.seq = max(s.seq, draft.Seq)
		if j := s.keyHolder(draft.UID, draft.Unique, now); j != nil && j.State.Waiting() {
			s.cancelReplaced(j, now)
		}
		s.insert(draft, known.UID, now)
		run.JobSeq, run.JobID = draft.Seq, draft.ID
		return run, []*job{s.jobs[draft.Seq]}
	}
	return refuse(store.OutcomeRefused, "all ids for this run are used by other jobs")
}
