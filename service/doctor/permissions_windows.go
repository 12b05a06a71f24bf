package doctor

import (
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/store"
)

// ExaminePathPermissions reports which accounts can use the state directory. It leaves out the accounts that need
// access: the system, administrators, the service's account, and the user of the service. It does not check the control
// pipe.
func ExaminePathPermissions(p config.Paths, _ fs.FileMode) []store.Finding {
	dir := p.StateDir
	var otherAccounts []string
	sd, err := accounts.ReadSecurityDescriptor(dir)
	if err == nil {
		otherAccounts, err = accounts.UntrustedAccountsWithRights(sd, allAccessRights, 0)
	}
	switch {
	case err != nil:
		return []store.Finding{Warning("permissions", err.Error(), "")}
	case len(otherAccounts) > 0:
		return []store.Finding{Failure("permissions",
			fmt.Sprintf("%s can be accessed by other users (%s)", dir, strings.Join(otherAccounts, ", ")),
			fmt.Sprintf(`remove their access: icacls "%s" /remove NAME; or, if the service is installed for all users, run: `+
				"queuectl service install", dir))}
	}
	return nil
}

// allAccessRights is the set of all access rights.
const allAccessRights = ^windows.ACCESS_MASK(0)
