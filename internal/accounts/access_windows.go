package accounts

import (
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
	"unsafe"

	"golang.org/x/sys/windows"
)

// services is what the identifiers of services' own accounts begin with; allServices is
// of a group.
const (
	services    = "S-1-5-80"
	allServices = services + "-0"
)

// ServiceSID is the virtual account of a service, NT SERVICE\NAME, which Windows makes of
// the SHA-1 of its name: it is the same everywhere, and there before the service is.
func ServiceSID(name string) string {
	var raw []byte
	for _, unit := range utf16.Encode([]rune(strings.ToUpper(name))) {
		raw = binary.LittleEndian.AppendUint16(raw, unit)
	}
	sum := sha1.Sum(raw)
	sid := services
	for part := sum[:]; len(part) > 0; part = part[4:] {
		sid += fmt.Sprintf("-%d", binary.LittleEndian.Uint32(part))
	}
	return sid
}

// Changes are the rights by which a file or a folder, or what is in it, can be changed.
const Changes = windows.FILE_WRITE_DATA | windows.FILE_APPEND_DATA | 0x40 /* FILE_DELETE_CHILD */ | windows.DELETE |
	windows.WRITE_DAC | windows.WRITE_OWNER | windows.GENERIC_WRITE | windows.GENERIC_ALL

// Replaces are the rights on a folder by which it, or what is in it, can be moved away, so that something else can take
// its place. The right to make something new in it is not one of them.
const Replaces = 0x40 /* FILE_DELETE_CHILD */ | windows.DELETE | windows.WRITE_DAC | windows.WRITE_OWNER | windows.GENERIC_ALL

// AccessTo is who may use a file or a folder, and whose it is.
func AccessTo(path string) (*windows.SECURITY_DESCRIPTOR, error) {
	sd, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return nil, fmt.Errorf("cannot read the access rights of %s: %w", path, err)
	}
	return sd, nil
}

// Owner is to whom something belongs, and whether that is one of those who may change it.
func Owner(sd *windows.SECURITY_DESCRIPTOR) (owner *windows.SID, trusted bool, err error) {
	if owner, _, err = sd.Owner(); err == nil && owner == nil {
		err = errors.New("the file or folder has no owner")
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
		strings.HasPrefix(sid.String(), services+"-") && sid.String() != allServices
}

// OthersBy are the accounts, beside those and the owner, to which an access list gives any
// of some rights: on the object, or on what is made in it.
func OthersBy(sd *windows.SECURITY_DESCRIPTOR, rights windows.ACCESS_MASK) (others []string, err error) {
	return othersBy(sd, rights, 0)
}

// OthersOnObject are those whom a descriptor gives some of these rights on the object itself, not on what is made in it.
func OthersOnObject(sd *windows.SECURITY_DESCRIPTOR, rights windows.ACCESS_MASK) (others []string, err error) {
	return othersBy(sd, rights, windows.INHERIT_ONLY_ACE)
}

// othersBy leaves out entries that have any of some flags.
func othersBy(sd *windows.SECURITY_DESCRIPTOR, rights windows.ACCESS_MASK, without uint8) (others []string, err error) {
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
		if entry.Header.AceType != windows.ACCESS_ALLOWED_ACE_TYPE || entry.Header.AceFlags&without != 0 || entry.Mask&rights == 0 {
			continue
		}
		if sid := (*windows.SID)(unsafe.Pointer(&entry.SidStart)); !sid.Equals(owner) && !mayChange(sid, me.User.Sid) && !ofOwner(sid) {
			others = append(others, Called(sid))
		}
	}
	return others, nil
}

// ofOwner reports whether an entry of an access list is about whoever owns the object, or one that is made in it.
func ofOwner(sid *windows.SID) bool {
	return sid.IsWellKnown(windows.WinCreatorOwnerSid) || sid.IsWellKnown(windows.WinCreatorOwnerRightsSid)
}

// Called is the name of an account, or its identifier where it has none.
func Called(sid *windows.SID) string {
	name, domain, _, err := sid.LookupAccount("")
	if err != nil {
		return sid.String()
	}
	return strings.TrimPrefix(domain+`\`+name, `\`)
}
