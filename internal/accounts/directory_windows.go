package accounts

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/windows"
)

// Resolver looks up the system's users and groups by name, by DOMAIN\NAME, by SID, or by the number that
// IDOfSID assigns. It caches the results of domain queries for a minute. The zero value is ready for use. The
// methods may be called concurrently.
type Resolver struct {
	// AlwaysQueryRemote makes every lookup query the domain. By default, a lookup that times out makes all further lookups
	// in the domain fail immediately for a minute. So a caller that only displays names waits for a slow domain only once
	// a minute.
	AlwaysQueryRemote bool
	// LookupAccountFunc replaces the lookup of a name or a SID by Windows if it is not nil. If the account does not exist,
	// it returns a WindowsAccount without a SID.
	LookupAccountFunc func(nameOrSID string) (WindowsAccount, error)

	remoteLookupCache lookupCache[WindowsAccount]
}

// WindowsAccount is an account as Windows describes it.
type WindowsAccount struct {
	SID           *windows.SID
	QualifiedName string // name with its domain; without the domain if that is this machine
	SIDType       uint32 // kind of the account, such as windows.SidTypeUser
}

// UserID returns the number of a user, by name, SID or number. It returns a number unchanged,
// without checking that the user exists.
func (d *Resolver) UserID(nameOrID string) (int, bool) {
	// Windows reports SYSTEM and the accounts of services as well-known groups, not as users.
	return d.lookupAccountID(nameOrID, windows.SidTypeUser, windows.SidTypeComputer, windows.SidTypeWellKnownGroup)
}

// GroupID returns the number of a group, by name, SID or number.
func (d *Resolver) GroupID(nameOrID string) (int, bool) {
	return d.lookupAccountID(nameOrID, windows.SidTypeGroup, windows.SidTypeAlias, windows.SidTypeWellKnownGroup)
}

// lookupAccountID returns the number of an account. ok is false if the account is unknown or is not of one of the
// sidTypes.
func (d *Resolver) lookupAccountID(nameOrID string, sidTypes ...uint32) (id int, ok bool) {
	if n, err := strconv.ParseUint(nameOrID, 10, 64); err == nil {
		return int(n), n < maxIDExclusive
	}
	if len(nameOrID) > 4 && strings.EqualFold(nameOrID[:4], "S-1-") {
		sid, err := windows.StringToSid(nameOrID)
		if err != nil {
			return 0, false
		}
		return IDOfSID(sid), true
	}
	e, err := d.lookupWindowsAccount(nameOrID, func() (WindowsAccount, error) {
		sid, _, use, err := windows.LookupSID("", nameOrID)
		return WindowsAccount{SID: sid, SIDType: use}, err
	})
	if err != nil || e.SID == nil || !slices.Contains(sidTypes, e.SIDType) {
		return 0, false
	}
	return IDOfSID(e.SID), true
}

// UserName returns the name of a user, or the number if there is no name.
func (d *Resolver) UserName(id int) string { return d.lookupAccountName(id) }

// GroupName returns the name of a group, or the number if there is no name.
func (d *Resolver) GroupName(id int) string { return d.lookupAccountName(id) }

// lookupAccountName returns the name of an account, or the number if there is no name.
func (d *Resolver) lookupAccountName(id int) string {
	sid, known := SIDOfID(id)
	if !known {
		return strconv.Itoa(id)
	}
	e, err := d.lookupWindowsAccount(sid.String(), func() (WindowsAccount, error) {
		name, domain, use, err := sid.LookupAccount("")
		if local := firstBuiltinGroupID <= id && id < firstSIDDigestID; domain != "" && !local {
			name = domain + `\` + name
		}
		return WindowsAccount{SID: sid, QualifiedName: name, SIDType: use}, err
	})
	if err != nil || e.SID == nil {
		return strconv.Itoa(id)
	}
	return e.QualifiedName
}

// noAccountErrors are the errors of Windows which mean that an account does not exist or cannot exist.
var noAccountErrors = []error{
	windows.ERROR_NONE_MAPPED, windows.ERROR_NO_SUCH_DOMAIN, windows.ERROR_INVALID_ACCOUNT_NAME,
	windows.ERROR_INVALID_PARAMETER, windows.ERROR_INVALID_SID, syscall.EINVAL,
}

// lookupWindowsAccount looks up the account with the given name or SID by calling query, which asks Windows. Windows
// may query a domain, which can take any time, so lookupWindowsAccount waits at most lookupTimeout.
func (d *Resolver) lookupWindowsAccount(nameOrSID string, query func() (WindowsAccount, error)) (WindowsAccount,
	error) {
	return d.remoteLookupCache.getOrQuery(strings.ToLower(nameOrSID), d.AlwaysQueryRemote, func() (WindowsAccount, error) {
		if d.LookupAccountFunc != nil {
			return d.LookupAccountFunc(nameOrSID)
		}
		type answer struct {
			WindowsAccount
			error
		}
		answered := make(chan answer, 1)
		// This goroutine ends when Windows responds, perhaps after lookupTimeout. In the minute after a
		// timeout, only lookups with AlwaysQueryRemote start another such goroutine.
		go func() {
			e, err := query()
			answered <- answer{e, err}
		}()
		select {
		case a := <-answered:
			if slices.ContainsFunc(noAccountErrors, func(noAccount error) bool { return errors.Is(a.error, noAccount) }) {
				return WindowsAccount{}, nil
			}
			return a.WindowsAccount, a.error
		case <-time.After(lookupTimeout):
			return WindowsAccount{}, errLookupTimeout
		}
	})
}
