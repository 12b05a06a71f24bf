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

// ExaminePlaces reports which accounts can use the state directory, except the system, administrators and the
// account or user of the service. The pipe has its own access list, which [access] defines.
func ExaminePlaces(p config.Places, _ fs.FileMode) []store.Finding {
	dir := p.State
	var others []string
	sd, err := accounts.AccessTo(dir)
	if err == nil {
		others, err = accounts.OthersWithRights(sd, anything)
	}
	switch {
	case err != nil:
		return []store.Finding{{Check: "permissions", Level: store.LevelWarning, Message: err.Error()}}
	case len(others) > 0:
		return []store.Finding{{Check: "permissions", Level: store.LevelFailure,
			Message: fmt.Sprintf("%s can be accessed by other users (%s)", dir, strings.Join(others, ", ")),
			Next: fmt.Sprintf(
				`remove their access: icacls "%s" /remove NAME; or, if the service is installed for all users, run: queuectl service install`, dir)}}
	}
	return nil
}

// anything is the set of all access rights.
const anything = ^windows.ACCESS_MASK(0)
