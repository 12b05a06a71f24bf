//go:build unix

package runner

import (
	"errors"
	"fmt"
	"os"

	"github.com/queuectl/queuectl/runner/rundir"
)

// LockRunners reserves the runners that were started as root for this service, until the returned file is
// closed. Without this lock, another service could connect to the runners and take their results. LockRunners
// returns nil if runners are not started as root, or if no runner has created their directory yet.
func (l Location) LockRunners() (*os.File, error) {
	if !l.IsExternal() {
		return nil, nil
	}
	f, err := rundir.WaitForLock(func() (*os.File, bool, error) { return rundir.LockDir(l.Dir) })
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot lock the runner directory: %w", err)
	case f == nil:
		return nil, fmt.Errorf("another service uses the runners in %s; stop that service, "+
			"or use another directory with --runner-dir", l.Dir)
	}
	return f, nil
}
