//go:build unix

package runner

import (
	"errors"
	"fmt"
	"os"

	"github.com/queuectl/queuectl/runner/rundir"
)

// LockRunnersDir reserves the runners that were started as root for this service, so that no other service
// connects to them and takes their results. The lock lasts until the returned file is closed. LockRunnersDir
// returns nil if runners are not started as root, or if no runner has created their directory yet.
func (l RunnersLocation) LockRunnersDir() (*os.File, error) {
	if !l.HasExternalRunnersDir() {
		return nil, nil
	}
	f, err := rundir.WaitForLock(func() (*os.File, bool, error) { return rundir.TryLockDir(l.RunnersDir) })
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot lock the runner directory: %w", err)
	case f == nil:
		return nil, fmt.Errorf("another service uses the runners in %s; stop that service, "+
			"or use another directory with --runner-dir", l.RunnersDir)
	}
	return f, nil
}
