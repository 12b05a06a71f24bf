// Package upkeep performs the periodic duties of a queue, such as retention and schedules. Each duty can
// safely be repeated.
//
// Start with Run. Plan in fire.go decides which occurrences of a schedule create jobs.
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

// maxPassInterval is the maximum time between two passes of Run. Timers do not notice that the clock was set
// or that the machine has slept, so this interval limits the delay in these cases.
const maxPassInterval = 30 * time.Second

// retainInterval is the minimum time between two runs of retention, unless the last run left something to
// remove. Without it, retention would run in each of possibly many passes a second.
const retainInterval = 5 * time.Second

// changesInterval is the maximum time until Run makes a pass after jobs were enqueued, have ended or were
// removed. The pass is needed because outputs may exceed a limit, or files may have to be deleted.
const changesInterval = retainInterval

// sweepStep is how many files are deleted at a time.
const sweepStep = 100

// Store is the part of the store that upkeep needs.
type Store interface {
	store.Upkeep
	Schedules
	Now() queue.Millis
	Counts() store.Counts
}

// Run performs all duties, each when it is due, until ctx ends:
// - make due jobs runnable
// - compute ranks again after the order was changed
// - cancel expired jobs and remove old request keys
// - remove jobs and events that were kept for their retention time
// - delete the outputs of removed jobs
// - create the jobs of schedules
//
// Run calls the function retention in each pass that removes old data. If Run receives a value from wake, the
// retention or the order has changed. If onIdleCheck is not nil, Run calls it after a pass, at most once in
// 30 s. Run returns an error only if the store cannot be used any more.
func Run(ctx context.Context, s Store, wake <-chan struct{}, retention func() Retention, purge Purge, recurring Recurring, onIdleCheck func(), log *slog.Logger) error {
	fire := newScheduleRunner(s, recurring, log)
	defer fire.replacing.Wait()
	var retained time.Time // time when retain last found nothing more to remove
	last := time.Now()
	for {
		counts := s.Counts()
		delay, err := s.Promote(ctx)
		if err == nil {
			var more bool
			if more, err = s.Rerank(ctx); more {
				delay = 0
			}
		}
		if since := time.Since(retained); err == nil && since < retainInterval {
			delay = min(delay, retainInterval-since)
		} else if err == nil {
			var more bool
			if more, err = retain(ctx, s, retention()); more {
				delay = 0
			} else if err == nil {
				retained = time.Now()
			}
		}
		if err == nil || isDiskFull(err) { // even if the disk is full, since deleting makes room
			more, failed := sweep(ctx, s, purge)
			if err = cmp.Or(err, failed); more {
				delay = 0
			}
		}
		if err == nil {
			var next time.Duration
			next, err = fire.runDue(ctx)
			delay = min(delay, next)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, queue.ErrOutcomeUnknown):
			return err
		case err != nil:
			log.Warn("upkeep of the queue (schedules, timers, retention) failed; trying again", "error", err)
			delay = time.Second
		}
		if now := time.Now(); onIdleCheck != nil && now.Sub(last) >= maxPassInterval {
			last = now
			onIdleCheck()
		}
		if waitForPass(ctx, s, counts, min(delay, maxPassInterval), wake, fire.replaced) {
			retained = time.Time{}
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// waitForPass waits until a pass is due, at most for the time wait. A pass is due if jobs have changed
// since counts were taken, the store signals something due sooner, a job was replaced, or wake has
// a value. It reports whether wake had a value.
func waitForPass(
	ctx context.Context, s Store, counts store.Counts, wait time.Duration, wake, replaced <-chan struct{},
) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	changes := time.NewTicker(changesInterval)
	defer changes.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-s.DueSooner():
			return false
		case <-wake:
			return true
		case <-replaced:
			return false
		case <-timer.C:
			return false
		case <-changes.C:
			if s.Counts() != counts {
				return false
			}
		}
	}
}

// isDiskFull reports whether an error means that the disk is full.
func isDiskFull(err error) bool {
	var e *queue.Error
	return errors.As(err, &e) && e.Code == queue.CodeNoSpace
}

// Purge deletes output files, ignores missing ones, and reports whether it succeeded.
type Purge func(ctx context.Context, refs []string) bool

// sweep deletes a limited number of unneeded output files and removes their records. It reports
// whether there may be more. Files that cannot be deleted now are tried again in the next pass.
func sweep(ctx context.Context, s Store, purge Purge) (more bool, err error) {
	refs, err := s.DeletableOutputs(ctx, sweepStep)
	if err != nil || len(refs) == 0 || !purge(ctx, refs) {
		return false, err
	}
	return len(refs) == sweepStep, s.OutputsDeleted(ctx, refs)
}
