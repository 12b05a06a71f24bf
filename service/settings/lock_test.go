package settings

import (
	"context"
	"errors"
	"testing"
)

// If the context of a caller ends while the caller waits for the lock, RunLocked returns and does not call the
// function.
func TestLockWaitEndsWithCallerContext(t *testing.T) {
	l := NewLock()
	err := l.RunLocked(t.Context(), func() error {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return l.RunLocked(ctx, func() error { t.Error("two callers hold the lock"); return nil })
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that the second caller was cancelled", err)
	}
	if err := l.RunLocked(t.Context(), func() error { return nil }); err != nil {
		t.Errorf("after the lock was released: %v", err)
	}
}
