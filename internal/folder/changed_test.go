package folder

import (
	"context"
	"errors"
	"testing"
)

// watch begins to watch a folder for the name "a" and hands on what comes of it.
func watch(t *testing.T, ctx context.Context, dir string) <-chan error {
	t.Helper()
	ready, told := make(chan struct{}), make(chan error, 1)
	go func() {
		told <- Changed(ctx, dir, []string{"a"}, func() bool { close(ready); return true })
	}()
	select {
	case <-ready:
	case err := <-told:
		t.Fatalf("it does not watch: %v", err)
	}
	return told
}

// It ends with its context, and does not wait if it need not.
func TestWatchingEnds(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	told := watch(t, ctx, dir)
	cancel()
	if err := <-told; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := Changed(t.Context(), dir, nil, func() bool { return false }); err != nil {
		t.Errorf("no need to wait: %v", err)
	}
}
