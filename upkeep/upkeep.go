// Package upkeep performs the periodic work of a queue, such as removing old jobs and starting recurring ones.
// Each step can be repeated safely.
//
// Start with Run. The function PlanOccurrences in schedule_runner.go decides which occurrences of a schedule
// create jobs.
package upkeep

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// maxUpkeepPassInterval is the maximum time between two passes of Run (a pass performs each duty once). Timers do not
// notice that the clock was set or that the machine has slept, so a timer may fire too late. This interval limits the
// delay.
const maxUpkeepPassInterval = 30 * time.Second

// retentionInterval is the minimum time between two calls of applyRetention, if the first call has left nothing to
// remove. Without this limit, Run would call applyRetention in every pass, possibly many times a second.
const retentionInterval = 5 * time.Second

// maxPassDelayAfterChange is the maximum time until the next pass of Run after a job was enqueued, has ended or was
// removed. After such a change, outputs may exceed a limit, or files may have to be deleted.
const maxPassDelayAfterChange = retentionInterval

// maxDeletedFilesPerPass is the maximum number of files that are deleted in one pass.
const maxDeletedFilesPerPass = 100

// Config contains the values that Run needs for its duties: the store, and functions of the service.
type Config struct {
	Store              store.Store
	CurrentRetention   func() Retention // returns the current retention settings
	PurgeOutputs       PurgeOutputsFunc // deletes the output files that the store lists for deletion
	RecurringJobConfig RecurringJobConfig

	SettingsChanged <-chan struct{} // receives a value when settings for retention or rank order have changed
	// OnIdleCheck checks whether the service is idle. It is called after a pass, at most once in 30 s. It may be nil.
	OnIdleCheck func()
	Log         *slog.Logger
}

// Run performs all duties, each when it is due, until ctx ends:
// - make due jobs runnable
// - compute ranks again after the order was changed
// - cancel expired jobs and remove old request keys
// - remove jobs and events that were kept for their retention time
// - delete the outputs of removed jobs
// - create the jobs of schedules
//
// Run returns an error only if the store cannot be used any more.
func Run(ctx context.Context, cfg Config) error {
	l := upkeepLoop{Config: cfg, scheduleRunner: newScheduleRunner(cfg.Store, cfg.RecurringJobConfig, cfg.Log)}
	defer l.scheduleRunner.runningReplacements.Wait()
	last := time.Now()
	for {
		counts := cfg.Store.Counts()
		delay, err := l.runUpkeepPass(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, queue.ErrOutcomeUnknown):
			return err
		case err != nil:
			cfg.Log.Warn("upkeep of the queue (schedules, timers, retention) failed; trying again", "error", err)
			delay = time.Second
		}
		if now := time.Now(); cfg.OnIdleCheck != nil && now.Sub(last) >= maxUpkeepPassInterval {
			last = now
			cfg.OnIdleCheck()
		}
		if l.waitForPass(ctx, counts, min(delay, maxUpkeepPassInterval)) {
			l.retentionCompletedAt = time.Time{}
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// upkeepLoop is the state of Run between its passes.
type upkeepLoop struct {
	Config
	scheduleRunner       *scheduleRunner
	retentionCompletedAt time.Time // when applyRetention last left nothing to remove
}

// runUpkeepPass performs each duty once. It stops at the first error. It returns the time until the next pass is due.
func (l *upkeepLoop) runUpkeepPass(ctx context.Context) (untilNextPass time.Duration, err error) {
	untilNextPass, err = l.Store.ApplyDueChanges(ctx)
	finish := func(more bool, stepErr error) {
		if err = cmp.Or(err, stepErr); more {
			untilNextPass = 0
		}
	}
	if err == nil {
		finish(l.Store.RerankWaitingJobs(ctx))
	}
	if since := time.Since(l.retentionCompletedAt); err == nil && since < retentionInterval {
		untilNextPass = min(untilNextPass, retentionInterval-since)
	} else if err == nil {
		more, failed := applyRetention(ctx, l.Store, l.CurrentRetention())
		if finish(more, failed); !more && failed == nil {
			l.retentionCompletedAt = time.Now()
		}
	}
	if err == nil || errors.Is(err, queue.ErrNoSpace) { // also if the disk is full, since deleting frees space
		finish(purgeDeletableOutputs(ctx, l.Store, l.PurgeOutputs))
	}
	if err == nil {
		var untilNext time.Duration
		untilNext, err = l.scheduleRunner.runDueSchedules(ctx)
		untilNextPass = min(untilNextPass, untilNext)
	}
	return untilNextPass, err
}

// waitForPass waits until Run must make its next pass, at most for maxWait. It returns earlier if the store's counts
// differ from oldCounts, if the store signals an earlier timer, if a running job was replaced, or if SettingsChanged
// has a value. settingsChanged is true if it received a value from SettingsChanged.
func (l *upkeepLoop) waitForPass(ctx context.Context, oldCounts store.Counts,
	maxWait time.Duration) (settingsChanged bool) {
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	changes := time.NewTicker(maxPassDelayAfterChange)
	defer changes.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-l.Store.DueChangeHints():
			return false
		case <-l.SettingsChanged:
			return true
		case <-l.scheduleRunner.replacementDoneSignal:
			return false
		case <-timer.C:
			return false
		case <-changes.C:
			if l.Store.Counts() != oldCounts {
				return false
			}
		}
	}
}

// PurgeOutputsFunc deletes output files. It returns false if a file could not be deleted; a missing file is no
// failure.
type PurgeOutputsFunc func(ctx context.Context, refs []string) bool

// purgeDeletableOutputs deletes a limited number of output files that are no longer needed, and removes their records.
// It returns true if more such files may exist. Files that could not be deleted are tried again in the next pass.
func purgeDeletableOutputs(ctx context.Context, s store.OutputFiles, purge PurgeOutputsFunc) (hasMore bool,
	err error) {
	refs, err := s.DeletableOutputs(ctx, maxDeletedFilesPerPass)
	if err != nil || len(refs) == 0 || !purge(ctx, refs) {
		return false, err
	}
	return len(refs) == maxDeletedFilesPerPass, s.ForgetDeletedOutputs(ctx, refs)
}
