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
	"github.com/queuectl/queuectl/store"
)

// examinePlaces looks at who may use the state folder beside the system, administrators,
// and the service's account, or the user whose service it is. The pipe has its own list,
// of [access].
func examinePlaces(p config.Places, _ fs.FileMode) []store.Finding {
	dir := p.State
	var others []string
	sd, err := accessTo(dir)
	if err == nil {
		others, err = othersBy(sd, anything)
	}
	switch {
	case err != nil:
		return []store.Finding{{Check: "permissions", Level: store.Warning, Message: err.Error()}}
	case len(others) > 0:
		return []store.Finding{{Check: "permissions", Level: store.Failure, Message: fmt.Sprintf("%s is open to others (%s)", dir, strings.Join(others, ", ")), Next: fmt.Sprintf(`take them out: icacls "%s" /remove NAME; the folder of the system's service is closed by: queuectl service install`, dir)}}
	}
	return nil
}

// Rights to a folder: all there are, and those by which it, or what is in it, can be changed.
const (
	anything = ^windows.ACCESS_MASK(0)
	changes  = windows.FILE_WRITE_DATA | windows.FILE_APPEND_DATA | 0x40 /* FILE_DELETE_CHILD */ | windows.DELETE |
		windows.WRITE_DAC | windows.WRITE_OWNER | windows.GENERIC_WRITE | windows.GENERIC_ALL
)

// accessTo is who may use a folder, and whose it is.
func accessTo(dir string) (*windows.SECURITY_DESCRIPTOR, error) {
	sd, err := windows.GetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return nil, fmt.Errorf("ask who may use %s: %w", dir, err)
	}
	return sd, nil
}

// ownerOf is to whom something belongs, and whether that is one of those who may change it.
func ownerOf(sd *windows.SECURITY_DESCRIPTOR) (owner *windows.SID, trusted bool, err error) {
	if owner, _, err = sd.Owner(); err == nil && owner == nil {
		err = errors.New("the state folder has no owner")
	}
	if err != nil {
		return nil, false, err
	}
	me, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return nil, false, err
	}
	return owner, mayChange(owner, me.User.Sid), nil
}

// mayChange reports whether an account is the system, the administrators, a service's own,
// or this one.
func mayChange(sid, me *windows.SID) bool {
	return sid.Equals(me) || sid.IsWellKnown(windows.WinLocalSystemSid) || sid.IsWellKnown(windows.WinBuiltinAdministratorsSid) ||
		strings.HasPrefix(sid.String(), services) && sid.String() != allServices
}

// othersBy are the accounts, beside those and the owner, to which an access list gives any
// of some rights.
func othersBy(sd *windows.SECURITY_DESCRIPTOR, rights windows.ACCESS_MASK) (others []string, err error) {
	owner, _, err := sd.Owner()
	if err != nil {
		return nil, err
	}
	me, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return nil, err
	}
	list, _, err := sd.DACL()
	if err != nil {
		return nil, err
	}
	if list == nil {
		return []string{"everybody"}, nil
	}
	for i := range uint32(list.AceCount) {
		var entry *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(list, i, &entry); err != nil {
			return nil, err
		}
		if entry.Header.AceType != windows.ACCESS_ALLOWED_ACE_TYPE || entry.Mask&rights == 0 {
			continue
		}
		if sid := (*windows.SID)(unsafe.Pointer(&entry.SidStart)); !sid.Equals(owner) && !mayChange(sid, me.User.Sid) && !sid.IsWellKnown(windows.WinCreatorOwnerSid) {
			others = append(others, called(sid))
		}
	}
	return others, nil
}

// called is the name of an account, or its identifier where it has none.
func called(sid *windows.SID) string {
	name, domain, _, err := sid.LookupAccount("")
	if err != nil {
		return sid.String()
	}
	return strings.TrimPrefix(domain+`\`+name, `\`)
}

// services is what the identifiers of services' own accounts begin with; allServices is
// of a group.
const (
	services    = "S-1-5-80-"
	allServices = "S-1-5-80-0"
)

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
