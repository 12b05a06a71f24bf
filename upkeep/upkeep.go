// Package upkeep does the periodic duties, each of which may be repeated.
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

// look is the longest time between two looks at what is due. It bounds what a
// clock that was stepped, or a machine that slept, can delay.
const look = 30 * time.Second

// retainAgain is the shortest time between two runs of retention, unless a run left something to remove: upkeep may run
// many times a second.
const retainAgain = 5 * time.Second

// changesAgain is the longest time until upkeep looks again once jobs were enqueued, have ended or were removed: their
// outputs may exceed a limit, or their files may be removed.
const changesAgain = retainAgain

// sweepStep is how many files are deleted at a time.
const sweepStep = 100

// Store is what upkeep needs of one.
type Store interface {
	store.Upkeep
	Schedules
	Now() queue.Millis
	Counts() store.Counts
}

// Run makes due jobs runnable, ranks jobs anew whose order has changed, cancels expired
// ones, forgets old keys, removes what
// is kept too long, deletes the output of removed jobs, and has recurring jobs run, each when it
// is due, until ctx ends. retention is asked at each look. It returns an error only when the
// store is of no more use. A value of wake means that retention or the order has changed. looked is called after a look, unless it was
// within the last 30 s, or is nil.
func Run(ctx context.Context, s Store, wake <-chan struct{}, retention func() Retention, purge Purge, recurring Recurring, looked func(), log *slog.Logger) error {
	fire := newFirer(s, recurring, log)
	defer fire.replacing.Wait()
	var retained time.Time // no more was found then
	last := time.Now()
	for {
		counts := s.Counts()
		wait, err := s.Promote(ctx)
		if err == nil {
			var more bool
			if more, err = s.Rerank(ctx); more {
				wait = 0
			}
		}
		if since := time.Since(retained); err == nil && since < retainAgain {
			wait = min(wait, retainAgain-since)
		} else if err == nil {
			var more bool
			if more, err = retain(ctx, s, retention()); more {
				wait = 0
			} else if err == nil {
				retained = time.Now()
			}
		}
		if err == nil || isFull(err) { // files are removed before anything is written
			more, failed := sweep(ctx, s, purge)
			if err = cmp.Or(err, failed); more {
				wait = 0
			}
		}
		if err == nil {
			var next time.Duration
			next, err = fire.due(ctx)
			wait = min(wait, next)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, queue.ErrOutcomeUnknown):
			return err
		case err != nil:
			log.Warn("upkeep of the queue (schedules, timers, retention) failed; trying again", "error", err)
			wait = time.Second
		}
		if now := time.Now(); looked != nil && now.Sub(last) >= look {
			last = now
			looked()
		}
		if pause(ctx, s, counts, min(wait, look), wake, fire.replaced) {
			retained = time.Time{}
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// pause waits for at most a duration, or until there is something to do: jobs have changed since counts were taken,
// something is due sooner, a job was replaced, or a value of wake came, which it reports.
func pause(ctx context.Context, s Store, counts store.Counts, wait time.Duration, wake, replaced <-chan struct{}) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	changes := time.NewTicker(changesAgain)
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

// isFull reports whether an error says that the disk is full.
func isFull(err error) bool {
	var e *queue.Error
	return errors.As(err, &e) && e.Code == queue.CodeNoSpace
}

// Purge deletes output files, what is gone already too, and reports whether that was done.
type Purge func(ctx context.Context, refs []string) bool

// sweep deletes some of what nobody needs and forgets it, and says whether there may be
// more; what could not be deleted now is kept for the next look.
func sweep(ctx context.Context, s Store, purge Purge) (more bool, err error) {
	refs, err := s.DeletableOutputs(ctx, sweepStep)
	if err != nil || len(refs) == 0 || !purge(ctx, refs) {
		return false, err
	}
	return len(refs) == sweepStep, s.OutputsDeleted(ctx, refs)
}
