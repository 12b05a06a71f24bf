package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// ownerUID returns the uid of the account that a runner's directory belongs to. It returns nil for a
// runner that is not in an account's directory. Root created the parent directory and gave it to the
// account, so the owner of that directory can be trusted.
func ownerUID(dir string) (*uint32, error) {
	if !HasSwitchedAccount(dir) {
		return nil, nil
	}
	info, err := os.Lstat(filepath.Dir(dir))
	if err != nil {
		return nil, fmt.Errorf("cannot find out the runner's account, which owns this directory; check the "+
			"directory: %w", err)
	}
	return &info.Sys().(*syscall.Stat_t).Uid, nil
}
