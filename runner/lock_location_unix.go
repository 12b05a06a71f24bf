//go:build unix

package runner

import (
	"errors"
	"fmt"
	"os"

	"github.com/queuectl/queuectl/runner/rundir"
)

// LockRunners reserves the runners that were started as root for this service, so that no other service
// connects to them and takes their results. The lock lasts until the returned file is closed. LockRunners
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
