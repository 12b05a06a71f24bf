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

// serviceSIDPrefix begins the SID of every service's virtual account. allServicesSID is the SID of the group
// that contains all these accounts.
const (
	serviceSIDPrefix = "S-1-5-80"
	allServicesSID   = serviceSIDPrefix + "-0"
)

// ServiceSID returns the SID of a service's virtual account, NT SERVICE\NAME. Windows derives the SID
// from the SHA-1 hash of the name. So the SID is the same on all machines, and is known before the
// service is installed.
func ServiceSID(name string) string {
	var raw []byte
	for _, unit := range utf16.Encode([]rune(strings.ToUpper(name))) {
		raw = binary.LittleEndian.AppendUint16(raw, unit)
	}
	sum := sha1.Sum(raw)
	sid := serviceSIDPrefix
	for part := sum[:]; len(part) > 0; part = part[4:] {
		sid += fmt.Sprintf("-%d", binary.LittleEndian.Uint32(part))
	}
	return sid
}

// WriteAccessRights are the access rights that let an account change a file, a directory or their content.
const WriteAccessRights = windows.FILE_WRITE_DATA | windows.FILE_APPEND_DATA | 0x40 /* FILE_DELETE_CHILD */ |
	windows.DELETE | windows.WRITE_DAC | windows.WRITE_OWNER | windows.GENERIC_WRITE | windows.GENERIC_ALL

// ReplaceAccessRights are the access rights on a directory that let an account move away or replace the directory or
// its content. They do not include the right to create files in the directory.
const ReplaceAccessRights = 0x40 /* FILE_DELETE_CHILD */ | windows.DELETE | windows.WRITE_DAC | windows.WRITE_OWNER |
	windows.GENERIC_ALL

// ReadSecurityDescriptor returns the access list and the owner of a file or a directory.
func ReadSecurityDescriptor(path string) (*windows.SECURITY_DESCRIPTOR, error) {
	sd, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT,
		windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return nil, fmt.Errorf("cannot read the access rights of %s: %w", path, err)
	}
	return sd, nil
}

// DescriptorOwner returns the owner of an object. isTrusted reports whether the owner is a trusted account (see
// isTrustedAccount).
func DescriptorOwner(sd *windows.SECURITY_DESCRIPTOR) (owner *windows.SID, isTrusted bool, err error) {
	if owner, _, err = sd.Owner(); err == nil && owner == nil {
		err = errors.New("no owner is stored for it")
	}
	me, meErr := windows.GetCurrentProcessToken().GetTokenUser()
	if err := errors.Join(err, meErr); err != nil {
		return nil, false, err
	}
	return owner, isTrustedAccount(owner, me.User.Sid), nil
}

// CheckDirAccess returns an error if an untrusted account owns the directory or can change it. The owner must
// be trusted, because an owner can change the access list. isTrustedAccount defines which accounts are
// trusted.
//
// sd is the security descriptor of the directory. displayName names the directory in the error. alternativeAdvice says
// what the user can do instead of changing the access to the directory.
func CheckDirAccess(path, displayName, alternativeAdvice string, sd *windows.SECURITY_DESCRIPTOR) error {
	owner, trusted, err := DescriptorOwner(sd)
	if err != nil {
		return fmt.Errorf("cannot determine the owner of %s (%w); %s", displayName, err, alternativeAdvice)
	}
	if !trusted {
		return fmt.Errorf(`%s belongs to %s; %s, or run in an elevated prompt: icacls "%s" /setowner *S-1-5-32-544`,
			displayName, AccountName(owner), alternativeAdvice, path)
	}
	others, err := UntrustedAccountsWithRights(sd, WriteAccessRights, 0)
	if err == nil && len(others) > 0 {
		err = fmt.Errorf(`%s can be changed by other users (%s); run: icacls "%s" /inheritance:r /grant:r `+
			`"%%USERNAME%%":(OI)(CI)F *S-1-5-18:(OI)(CI)F *S-1-5-32-544:(OI)(CI)F`, displayName,
			strings.Join(others, ", "), path)
	}
	return err
}

// isTrustedAccount reports whether sid is the system, the administrators, a service's virtual account, or
// ownSID. queuectl accepts files that belong to these accounts.
func isTrustedAccount(sid, ownSID *windows.SID) bool {
	return sid.Equals(ownSID) || sid.IsWellKnown(windows.WinLocalSystemSid) ||
		sid.IsWellKnown(windows.WinBuiltinAdministratorsSid) ||
		strings.HasPrefix(sid.String(), serviceSIDPrefix+"-") && sid.String() != allServicesSID
}

// UntrustedAccountsWithRights returns the accounts that have at least one of the rights on an object, or on
// objects that are created in it. It omits the owner and the accounts that isTrustedAccount accepts.
//
// It ignores entries of the access list that have one of ignoredACEFlags. For example, ignoredACEFlags can be
// INHERIT_ONLY_ACE: the flag of entries that apply only to objects that are created in this object.
func UntrustedAccountsWithRights(sd *windows.SECURITY_DESCRIPTOR, rights windows.ACCESS_MASK,
	ignoredACEFlags uint8) (accountNames []string, err error) {
	owner, _, ownerErr := sd.Owner()
	me, meErr := windows.GetCurrentProcessToken().GetTokenUser()
	list, _, listErr := sd.DACL()
	if err := errors.Join(ownerErr, meErr, listErr); err != nil {
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
		if entry.Header.AceType != windows.ACCESS_ALLOWED_ACE_TYPE || entry.Header.AceFlags&ignoredACEFlags != 0 ||
			entry.Mask&rights == 0 {
			continue
		}
		sid := (*windows.SID)(unsafe.Pointer(&entry.SidStart))
		if !sid.Equals(owner) && !isTrustedAccount(sid, me.User.Sid) && !isOwnerPlaceholderSID(sid) {
			accountNames = append(accountNames, AccountName(sid))
		}
	}
	return accountNames, nil
}

// isOwnerPlaceholderSID reports whether sid is CREATOR OWNER or OWNER RIGHTS. In an access list, these two well-known
// SIDs mean the owner of the object, or of an object created in it.
func isOwnerPlaceholderSID(sid *windows.SID) bool {
	return sid.IsWellKnown(windows.WinCreatorOwnerSid) || sid.IsWellKnown(windows.WinCreatorOwnerRightsSid)
}

// AccountName returns the name of an account, or its SID if it has no name.
func AccountName(sid *windows.SID) string {
	name, domain, _, err := sid.LookupAccount("")
	if err != nil {
		return sid.String()
	}
	return strings.TrimPrefix(domain+`\`+name, `\`)
}
