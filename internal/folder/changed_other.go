//go:build !linux

// Package folder tells when files of a folder come and go, without looking again
// and again.
package folder

import "context"

// Changed tells nothing here: it returns when ctx ends. On Windows there is nothing to
// tell: files that are open can be neither removed nor replaced.
func Changed(ctx context.Context, _ string, _ []string, watching func() bool) error {
	if !watching() {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}
