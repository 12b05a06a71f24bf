package dir

import (
	"context"
	"errors"
	"testing"
)

// startWaitForChange calls WaitForChange for the file name "a" in a directory. The returned channel receives the
// result.
func startWaitForChange(t *testing.T, ctx context.Context, dir string) <-chan error {
	t.Helper()
	ready, result := make(chan struct{}), make(chan error, 1)
	go func() {
		result <- WaitForChange(ctx, dir, []string{"a"}, func() bool { close(ready); return true })
	}()
	select {
	case <-ready:
	case err := <-result:
		t.Fatalf("the directory is not watched: %v", err)
	}
	return result
}

// WaitForChange ends with its context, and returns immediately if onWatching returns false.
func TestWaitForChangeEndsWithContext(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	result := startWaitForChange(t, ctx, dir)
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := WaitForChange(t.Context(), dir, nil, func() bool { return false }); err != nil {
		t.Errorf("if the condition already holds: %v", err)
	}
}
