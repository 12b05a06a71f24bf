package store

import (
	"context"
	"time"
)

// Timers makes the changes that are due at a certain time.
type Timers interface {
	// Promote makes due jobs runnable, cancels expired jobs and deletes old keys, a limited number of each.
	// It returns the time until something is due again: 0 if more is due now, and at most an hour.
	Promote(ctx context.Context) (next time.Duration, err error)
	// PromoteHints returns a channel that receives a hint when something is due before the time that the
	// last call of Promote returned.
	PromoteHints() <-chan struct{}
}
