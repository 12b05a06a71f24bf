package store

import (
	"context"
	"time"
)

// Timers makes the changes that are due at a certain time, such as making a delayed job ready.
type Timers interface {
	// ApplyDueChanges makes due jobs ready to start, cancels expired jobs, and deletes idempotency keys that are older
	// than IdempotencyKeyRetention. Each call makes a limited number of these changes. It returns the time until
	// the next change is due, at most an hour; 0 means that more changes are due now.
	ApplyDueChanges(ctx context.Context) (untilNextDue time.Duration, err error)
	// DueChangeHints returns a channel that receives a value when a change is due earlier than the last call of
	// ApplyDueChanges has returned.
	DueChangeHints() <-chan struct{}
}
