package rundir

import (
	"fmt"
	"os"
	"strings"

	"github.com/queuectl/queuectl/internal/accounts"
)

// CheckWorkspaces accepts any directory, because no other account can access its parent.
func CheckWorkspaces(string) error { return nil }

// checkParents returns an error if another account could change path, a directory for the private
// directories of jobs.
func checkParents(path, _ string, _ bool) error {
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
	owner, trusted, err := accounts.Owner(sd)
	if err != nil {
		return fmt.Errorf("%s: cannot determine its owner (%w); choose another folder", path, err)
	}
	if !trusted {
		return fmt.Errorf(`%s: belongs to %s; choose another folder, or run in an elevated prompt: `+
			`icacls "%[1]s" /setowner *S-1-5-32-544`, path, accounts.NameOf(owner))
	}
	others, err := accounts.OtherAccountsWithRights(sd, accounts.WriteRights, 0)
	if err == nil && len(others) > 0 {
		err = fmt.Errorf(`%s: other accounts can change it (%s); run: icacls "%[1]s" /inheritance:r /grant:r `+
			`"%%USERNAME%%":(OI)(CI)F *S-1-5-18:(OI)(CI)F *S-1-5-32-544:(OI)(CI)F`, path, strings.Join(others, ", "))
	}
	return err
}
