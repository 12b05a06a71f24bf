package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// switchedAccountUID returns the uid of the account that a runner has switched to, or nil if it has not switched. The
// uid is the owner of the parent directory of runnerDir. It can be trusted, because root created the parent directory
// and gave it to the account.
func switchedAccountUID(runnerDir string) (*uint32, error) {
	if !RunnerHasSwitchedAccount(runnerDir) {
		return nil, nil
	}
	info, err := os.Lstat(filepath.Dir(runnerDir))
	if err != nil {
		return nil, fmt.Errorf("cannot find out the runner's account, which owns this directory; check the "+
			"directory: %w", err)
	}
	return &info.Sys().(*syscall.Stat_t).Uid, nil
}
