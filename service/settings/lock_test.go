package settings

import (
	"context"
	"errors"
	"testing"
)

// A caller that waits for the lock stops waiting when its context ends. Its function is then not called.
func TestLockEndsWithItsCaller(t *testing.T) {
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
