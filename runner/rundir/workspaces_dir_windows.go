package rundir

import (
	"fmt"
	"os"

	"github.com/queuectl/queuectl/internal/accounts"
)

// CheckWorkspacesDir returns nil: no other account can access the parent directory, so no check is needed.
func CheckWorkspacesDir(string) error { return nil }

// checkParentDirs returns an error if another account could change a directory for the private directories of
// jobs.
func checkParentDirs(path, _ string, _ bool) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s: is not a folder; remove it, or change the setting job_tmpdir", path)
	}
	sd, err := accounts.ReadSecurityDescriptor(path)
	if err != nil {
		return err
	}
	return accounts.CheckDirAccess(path, path, "choose another folder", sd)
}
