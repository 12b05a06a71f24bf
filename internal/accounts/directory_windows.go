package accounts

import (
	"errors"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/windows"
)

// Directory is the system's users and groups, by name, as DOMAIN\NAME, by SID or by the
// number that ID gives it. What a domain has said holds for a minute. The zero value is
// ready, and its methods may be called at once.
type Directory struct {
	// Patient asks each time. Without it nobody is asked for a minute after the domain has
	// not answered in time: who only wants names waits for it once.
	Patient bool
	// Ask is asked for a name or a SID in place of Windows, if it is not nil. A nil SID is
	// nobody's.
	Ask func(word string) (Entry, error)

	others others[Entry]
}

// Entry is what Windows says of an account.
type Entry struct {
	SID  *windows.SID
	Name string // with its domain, where that is not this machine
	Use  uint32 // windows.SidTypeUser and so on
}

// UserID is the number of a user, by name, SID or number. A number is nobody's name, and
// needs nobody behind it.
func (d *Directory) UserID(word string) (int, bool) {
	return d.id(word, windows.SidTypeUser, windows.SidTypeComputer, windows.SidTypeWellKnownGroup) // as SYSTEM, and services, are
}

// GroupID is the number of a group, by name, SID or number.
func (d *Directory) GroupID(word string) (int, bool) {
	return d.id(word, windows.SidTypeGroup, windows.SidTypeAlias, windows.SidTypeWellKnownGroup)
}

func (d *Directory) id(word string, uses ...uint32) (int, bool) {
	if n, err := strconv.ParseUint(word, 10, 64); err == nil {
		return int(n), n < endOfNumbers
	}
	if len(word) > 4 && strings.EqualFold(word[:4], "S-1-") {
		sid, err := windows.StringToSid(word)
		if err != nil {
			return 0, false
		}
		return ID(sid), true
	}
	e, err := d.entry(word, func() (Entry, error) {
		sid, _, use, err := windows.LookupSID("", word)
		return Entry{SID: sid, Use: use}, err
	})
	if err != nil || e.SID == nil {
		return 0, false
	}
	for _, use := range uses {
		if e.Use == use {
			return ID(e.SID), true
		}
	}
	return 0, false
}

// UserName is the name of a user, or the number where there is none.
func (d *Directory) UserName(id int) string { return d.name(id) }

// GroupName is the name of a group, or the number where there is none.
func (d *Directory) GroupName(id int) string { return d.name(id) }

func (d *Directory) name(id int) string {
	sid, known := SID(id)
	if !known {
		return strconv.Itoa(id)
	}
	e, err := d.entry(sid.String(), func() (Entry, error) {
		name, domain, use, err := sid.LookupAccount("")
		if local := firstBuiltin <= id && id < firstDigest; domain != "" && !local {
			name = domain + `\` + name
		}
		return Entry{SID: sid, Name: name, Use: use}, err
	})
	if err != nil || e.SID == nil {
		return strconv.Itoa(id)
	}
	return e.Name
}

// nobodies say for certain that there is no such account: there cannot be one, too.
var nobodies = []error{
	windows.ERROR_NONE_MAPPED, windows.ERROR_NO_SUCH_DOMAIN, windows.ERROR_INVALID_ACCOUNT_NAME, windows.ERROR_INVALID_PARAMETER, windows.ERROR_INVALID_SID, syscall.EINVAL,
}

// entry looks somebody up. Windows may ask a domain, which can take any time: it is waited
// for as long as for other sources elsewhere.
func (d *Directory) entry(word string, look func() (Entry, error)) (Entry, error) {
	return d.others.ask(strings.ToLower(word), d.Patient, func() (Entry, error) {
		if d.Ask != nil {
			return d.Ask(word)
		}
		type answer struct {
			Entry
			error
		}
		answered := make(chan answer, 1)
		go func() { // ends when Windows answers; the silence keeps others from being asked meanwhile
			e, err := look()
			answered <- answer{e, err}
		}()
		select {
		case a := <-answered:
			for _, nobody := range nobodies {
				if errors.Is(a.error, nobody) {
					return Entry{}, nil
				}
			}
			return a.Entry, a.error
		case <-time.After(askFor):
			return Entry{}, errSilent
		}
	})
}
