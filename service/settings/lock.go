package settings

import (
	"context"
)

// Lock lets one caller at a time change settings, the number of workers or the drain. A caller holds the lock from
// before it reads the old values until the new values are in effect. So changes take effect in the order in which they
// are stored. While the lock is held, the channel contains a token.
type Lock struct{ token chan struct{} }

// NewLock returns a lock that no caller holds.
func NewLock() *Lock { return &Lock{token: make(chan struct{}, 1)} }

// RunLocked calls f while it holds the lock, so that no other caller changes settings at the same time. It returns an
// error if ctx ends before it gets the lock.
func (l *Lock) RunLocked(ctx context.Context, f func() error) error {
	select {
	case l.token <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.token }()
	return f()
}
