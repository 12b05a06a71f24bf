//go:build !linux

// Package dir reports when files in a directory are created, removed or replaced. It does not poll.
package dir

import "context"

// WaitForChange does not watch the directory on this system. It returns when ctx ends, or immediately if
// onWatching() returns false. On Windows that is sufficient, because open files can be neither removed nor
// replaced.
func WaitForChange(ctx context.Context, _ string, _ []string, onWatching func() bool) error {
	if !onWatching() {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}
