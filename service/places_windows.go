package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/store"
)

// examinePlaces looks at who may use the state folder beside the system, administrators,
// and the service's account, or the user whose service it is. The pipe has its own list,
// of [access].
func examinePlaces(p config.Places, _ fs.FileMode) []store.Finding {
	dir := p.State
	var others []string
	sd, err := accounts.AccessTo(dir)
	if err == nil {
		others, err = accounts.OthersBy(sd, anything)
	}
	switch {
	case err != nil:
		return []store.Finding{{Check: "permissions", Level: store.Warning, Message: err.Error()}}
	case len(others) > 0:
		return []store.Finding{{Check: "permissions", Level: store.Failure, Message: fmt.Sprintf("%s is open to others (%s)", dir, strings.Join(others, ", ")), Next: fmt.Sprintf(`take them out: icacls "%s" /remove NAME; the folder of the system's service is closed by: queuectl service install`, dir)}}
	}
	return nil
}

// anything is all the rights there are.
const anything = ^windows.ACCESS_MASK(0)

// mkdirPrivate makes a folder, and those above it, that nobody else enters: whatever the
// one above lets in, it lets in its user, the system and administrators.
func mkdirPrivate(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	me, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return err
	}
	sd, err := windows.SecurityDescriptorFromString("D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;" + me.User.Sid.String() + ")")
	if err != nil {
		return err
	}
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return err
	}
	attributes := windows.SecurityAttributes{SecurityDescriptor: sd}
	attributes.Length = uint32(unsafe.Sizeof(attributes))
	if err := windows.CreateDirectory(name, &attributes); err != nil && !errors.Is(err, windows.ERROR_ALREADY_EXISTS) {
		return &fs.PathError{Op: "mkdir", Path: dir, Err: err}
	}
	return nil
}
