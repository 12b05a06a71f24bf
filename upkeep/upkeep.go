// Package upkeep does the periodic duties, each of which may be repeated.
package upkeep

import (
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

// sweepStep is how many files are deleted at a time.
const sweepStep = 100

// Run makes due jobs runnable, cancels expired ones, forgets old keys, and
// deletes the output of removed jobs, each when it is due, until ctx ends. It
// returns an error only when the store is of no more use.
func Run(ctx context.Context, s store.Keeper, purge func(refs []string), log *slog.Logger) error {
	for {
		wait, err := s.Promote(ctx)
		if err == nil {
			err = sweep(ctx, s, purge)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, queue.ErrOutcomeUnknown):
			return err
		case err != nil:
			log.Warn("upkeep put off", "error", err)
			wait = time.Second
		}
		timer := time.NewTimer(min(wait, look))
		select {
		case <-ctx.Done():
			return nil
		case <-s.Alarm():
		case <-timer.C:
		}
		timer.Stop()
	}
}

func sweep(ctx context.Context, s store.Keeper, purge func([]string)) error {
	refs, err := s.Garbage(ctx, sweepStep)
	if err != nil || len(refs) == 0 {
		return err
	}
	purge(refs)
	return s.Swept(ctx, refs)
}
