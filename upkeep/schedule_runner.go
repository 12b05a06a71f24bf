package upkeep

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/queuectl/queuectl/internal/zone"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/schedule"
	"github.com/queuectl/queuectl/store"
)

// An occurrence (a planned start of a schedule) counts as missed once it is late by maxOccurrenceLateness. A missed
// occurrence creates a job only if the schedule's CatchUp setting permits it.
const maxOccurrenceLateness = time.Minute

// maxSchedulesPerStep is the maximum number of schedules that are read from the store at a time. It is small,
// because each schedule contains its job, which may be large.
const maxSchedulesPerStep = 16

// RecurringJobConfig contains what upkeep needs for recurring jobs in addition to the store.
type RecurringJobConfig struct {
	BootID string // boot id of the machine; "" if unknown
	// UserLimits returns the name of a user and three limits: for the number of all waiting jobs, for the
	// number of this user's waiting jobs, and for the bytes that this user's jobs may use.
	UserLimits func(uid int) (userName string, maxPending, maxPendingPerUser, maxBytesPerUser int64)
	// MakeRoomInQuota removes a user's outputs, and the inputs of ended jobs, until a job that the store has refused fits
	// into the user's quota of bytes. It reports whether the job now fits. If removing everything would not be enough, it
	// removes nothing. It may be nil.
	MakeRoomInQuota func(ctx context.Context, uid int, quotaErr *store.QuotaError) bool
	// EndJob ends a job that a worker has claimed, on behalf of a user, and waits for the job's end.
	EndJob func(ctx context.Context, seq int64, uid int) error
}

// PlanOccurrences decides which occurrences of a schedule are due now, and which of them create jobs. The
// parameter bootID is the id of the machine's current boot, which schedules with @reboot need. An error means that
// the schedule is invalid.
func PlanOccurrences(s *store.Schedule, bootID string, now queue.UnixMillis) (store.OccurrenceRequest, error) {
	f := store.OccurrenceRequest{
		ScheduleName: s.Name, Generation: s.Generation, ExpectedLastOccurrenceAt: s.LastOccurrenceAt,
		ExpectedLastBootID: s.LastBootID, NewLastOccurrenceAt: s.LastOccurrenceAt,
		NewLastBootID:  s.LastBootID,
		CandidateJobID: func(at queue.UnixMillis, n int) string { return schedule.CandidateJobID(s.Name, at.Time(), n) },
	}
	line, err := schedule.ParseCronLine(s.CronLine)
	if err != nil {
		return f, err
	}
	if line.RunsAtBoot() {
		f.OccurrencesToRun, f.NewLastBootID, f.NewLastOccurrenceAt = []queue.UnixMillis{now}, bootID,
			max(s.LastOccurrenceAt, now)
		return f, nil
	}
	location, err := zone.Load(s.TimeZone)
	if err != nil {
		return f, err
	}
	since := s.CreatedAt.Time()
	due := func(at time.Time) queue.UnixMillis {
		return queue.UnixMillisOf(at.Add(schedule.JitterDelay(s.Name, at, s.MaxJitter)))
	}
	var occurrenceTimes []queue.UnixMillis
	inTime := false // the newest occurrence is less than maxOccurrenceLateness late
	for _, at := range line.NewestOccurrences(s.LastOccurrenceAt.Time(), now.Time(), since, location,
		store.MaxOccurrencesPerRequest) {
		if when := due(at); when <= now {
			occurrenceTimes, inTime = append(occurrenceTimes, queue.UnixMillisOf(at)), now < when.Add(maxOccurrenceLateness)
		}
	}
	if n := len(occurrenceTimes); n > 0 {
		f.NewLastOccurrenceAt = occurrenceTimes[n-1]
		switch {
		case s.CatchUp == store.CatchUpAll:
			f.OccurrencesToRun = occurrenceTimes
		case s.CatchUp == store.CatchUpOne || inTime:
			f.OccurrencesToRun, f.MissedOccurrences = occurrenceTimes[n-1:], occurrenceTimes[:n-1]
		default:
			f.MissedOccurrences = occurrenceTimes
		}
	}
	if next := line.NextOccurrence(f.NewLastOccurrenceAt.Time(), since, location); !next.IsZero() {
		f.NewNextOccurrenceAt, f.NewNextDueAt = queue.UnixMillisOf(next), due(next)
	}
	return f, nil
}

// scheduleRunner creates the jobs of due schedules.
type scheduleRunner struct {
	store                 store.Store
	jobConfig             RecurringJobConfig
	log                   *slog.Logger
	runningReplacements   sync.WaitGroup // calls of replaceRunningJobs in progress
	replacementDoneSignal chan struct{}  // receives a value when replaceRunningJobs has finished

	replacementsBySchedule sync.Map // by schedule name, the *replacementInProgress of each running replaceRunningJobs
}

// replacementInProgress is a call of replaceRunningJobs in progress.
type replacementInProgress struct {
	scheduleGeneration int64 // generation of the schedule
	cancel             context.CancelFunc
}

func newScheduleRunner(s store.Store, r RecurringJobConfig, log *slog.Logger) *scheduleRunner {
	return &scheduleRunner{store: s, jobConfig: r, log: log, replacementDoneSignal: make(chan struct{}, 1)}
}

// runDueSchedules handles at most maxSchedulesPerStep due schedules. It returns the time until it must be called again.
func (r *scheduleRunner) runDueSchedules(ctx context.Context) (untilNext time.Duration, err error) {
	limit := maxSchedulesPerStep
	for range r.replacementsBySchedule.Range {
		limit++
	}
	list, untilNext, err := r.store.DueSchedules(ctx, r.jobConfig.BootID, limit)
	if err != nil {
		return 0, err
	}
	for i := range list {
		known, beingReplaced := r.replacementsBySchedule.Load(list[i].Name)
		if beingReplaced && known.(*replacementInProgress).scheduleGeneration == list[i].Generation {
			continue
		}
		scheduleErr := r.runSchedule(ctx, &list[i])
		if errors.Is(scheduleErr, queue.ErrOutcomeUnknown) {
			return 0, scheduleErr
		}
		err = errors.Join(err, scheduleErr) // an error of one schedule does not stop the others
		untilNext = 0
	}
	return untilNext, err
}

// runSchedule creates the jobs of one due schedule, as PlanOccurrences has decided.
func (r *scheduleRunner) runSchedule(ctx context.Context, s *store.Schedule) error {
	plan, err := PlanOccurrences(s, r.jobConfig.BootID, r.store.Now())
	if s.IsDamaged && err == nil {
		err = errors.New(s.PauseOrDamageNote)
	}
	if err != nil {
		r.log.Error("a schedule is invalid and was paused; see: queuectl schedule show NAME",
			"schedule", s.Name, "error", err)
		err = r.store.PauseSchedule(ctx, store.SchedulePauseRequest{ScheduleName: s.Name, Generation: s.Generation,
			Paused: true, PauseNote: err.Error()})
		return ignoreRemovedScheduleError(err)
	}
	plan.OwnerName, plan.MaxPendingJobs, plan.MaxPendingJobsPerUser,
		plan.MaxBytesPerUser = r.jobConfig.UserLimits(s.OwnerUID)
	fired, err := r.runOccurrences(ctx, s.OwnerUID, plan)
	if err != nil || len(fired.JobSeqsToCancel) == 0 {
		return ignoreRemovedScheduleError(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	own := &replacementInProgress{s.Generation, cancel}
	// An earlier replacement belongs to a removed schedule that had the same name, so cancel it.
	if earlier, found := r.replacementsBySchedule.Swap(s.Name, own); found {
		earlier.(*replacementInProgress).cancel()
	}
	r.runningReplacements.Go(func() {
		defer cancel()
		r.replaceRunningJobs(ctx, s.OwnerUID, plan, fired.JobSeqsToCancel)
		r.replacementsBySchedule.CompareAndDelete(s.Name, own)
		queue.TrySend(r.replacementDoneSignal, struct{}{})
	})
	return nil
}

// runOccurrences stores due occurrences of a schedule and creates their jobs. If the jobs do not fit into the user's
// quota of bytes, runOccurrences frees space in the quota and tries again. If it cannot free enough space for all of
// these jobs, it frees enough for one job.
func (r *scheduleRunner) runOccurrences(ctx context.Context, uid int,
	plan store.OccurrenceRequest) (store.OccurrenceResult,
	error) {
	plan.FailIfOverQuota = r.jobConfig.MakeRoomInQuota != nil
	fired, err := r.store.RunOccurrences(ctx, plan)
	var quotaErr *store.QuotaError
	if !errors.As(err, &quotaErr) {
		return fired, err
	}
	total := *quotaErr
	total.NeededBytes *= int64(len(plan.OccurrencesToRun))
	if !r.jobConfig.MakeRoomInQuota(ctx, uid, &total) {
		r.jobConfig.MakeRoomInQuota(ctx, uid, quotaErr)
	}
	plan.FailIfOverQuota = false
	return r.store.RunOccurrences(ctx, plan)
}

// ignoreRemovedScheduleError returns nil if err means that the schedule was removed or replaced. Otherwise it
// returns err.
func ignoreRemovedScheduleError(err error) error {
	if errors.Is(err, queue.ErrNotFound) || errors.Is(err, store.ErrScheduleChanged) {
		return nil
	}
	return err
}

// replacementRetryDelay is the delay before replaceRunningJobs tries again. It must try again if a running job of the
// schedule could not be ended, or if a worker has claimed another job of the schedule.
const replacementRetryDelay = 50 * time.Millisecond

// replaceRunningJobs ends the running jobs of a schedule and then creates the due jobs in plan. It creates the due jobs
// even if the running jobs take long to end.
func (r *scheduleRunner) replaceRunningJobs(ctx context.Context, uid int, plan store.OccurrenceRequest,
	leasedJobSeqs []int64) {
	for {
		var endErr error
		for _, seq := range leasedJobSeqs {
			endErr = errors.Join(endErr, r.jobConfig.EndJob(ctx, seq, uid))
		}
		fired, err := r.runOccurrences(ctx, uid, plan)
		if err = ignoreRemovedScheduleError(err); err == nil && len(fired.JobSeqsToCancel) == 0 ||
			!sleepUnlessDone(ctx, replacementRetryDelay) {
			break
		}
		if err = errors.Join(endErr, err); err != nil {
			r.log.Warn("cannot replace the running job of a schedule yet; trying again", "schedule", plan.ScheduleName, "error",
				err)
			if errors.Is(err, queue.ErrOutcomeUnknown) || !sleepUnlessDone(ctx, time.Second) {
				break
			}
		}
		leasedJobSeqs = fired.JobSeqsToCancel
	}
}
