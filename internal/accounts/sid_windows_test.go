package accounts

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/windows"
)

// parseSID converts a SID from its text form.
func parseSID(t *testing.T, text string) *windows.SID {
	t.Helper()
	sid, err := windows.StringToSid(text)
	if err != nil {
		t.Fatal(err)
	}
	return sid
}

// IDOfSID assigns each account one number, and SIDOfID maps the number back. Only the system account is 0.
// Accounts outside the fixed ranges get a digest, which JSON can represent exactly.
func TestIDOfSIDIsUniqueAndReversible(t *testing.T) {
	here := machineSID()
	if here == nil {
		t.Fatal("this machine has no SID")
	}
	domain := "S-1-5-21-1004336348-1177238915-682003330"
	for text, want := range map[string]int{
		"S-1-5-18": 0, "S-1-5-19": 19, "S-1-5-11": 11, "S-1-5-32-544": 544, "S-1-5-32-545": 545,
		here.String() + "-1001": 0x30000 + 1001, here.String() + "-4294967295": 0x30000 + 4294967295,
		here.String() + "-0": 0x30000,
		domain + "-513":      0x1325089f07bc04, // 2^52 plus the first 52 bits of the SID's SHA-256
		"S-1-1-0":            -1,
		"S-1-5-0":            -1,
		"S-1-5-32-18":        -1,
		"S-1-5-32":           32,
		"S-1-5-1000":         -1,
		"S-1-5-32-0":         -1,
		"S-1-1-18":           -1,
		"S-1-16-12288":       -1,
		"S-1-5-32-0-544":     -1,
		"S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464": -1,
		here.String(): -1,
	} {
		id := IDOfSID(parseSID(t, text))
		if want >= 0 && id != want || want < 0 && (id < 1<<52 || id >= 1<<53) {
			t.Errorf("%s is %d (%#x), want %d", text, id, id, want)
		}
		if again, known := SIDOfID(id); !known || again.String() != text {
			t.Errorf("%d is %s, %v, want %s", id, again, known, text)
		}
	}
	if _, known := SIDOfID(1<<53 - 1); known {
		t.Error("an account is found by a digest that was never computed")
	}
	for _, id := range []int{-1, 1 << 53, 18} {
		if s, known := SIDOfID(id); known {
			t.Errorf("%d is the account %s", id, s)
		}
	}
}

// IDOfSID remembers only a limited number of digests.
func TestRememberedSIDDigestsAreLimited(t *testing.T) {
	var s sidTable
	for i := range maxCachedLookups + 2 {
		s.add(i, parseSID(t, "S-1-1-0"))
	}
	if len(s.byID) > maxCachedLookups {
		t.Errorf("%d accounts are remembered", len(s.byID))
	}
}

// Resolver finds the account of this process, and the system's accounts, by number, name and SID.
func TestResolverFindsWindowsAccounts(t *testing.T) {
	var d Resolver
	self, known := SIDOfID(CurrentUserID())
	if !known {
		t.Fatalf("%d belongs to no account", CurrentUserID())
	}
	for _, word := range []string{d.UserName(CurrentUserID()), self.String(), strconv.Itoa(CurrentUserID())} {
		if id, ok := d.UserID(word); !ok || id != CurrentUserID() {
			t.Errorf("%s is %d, %v, want %d", word, id, ok, CurrentUserID())
		}
	}
	administrators := d.GroupName(544)
	if id, ok := d.GroupID(administrators); !ok || id != 544 || administrators == "544" {
		t.Errorf("the administrators are %q: %d, %v", administrators, id, ok)
	}
	if _, ok := d.UserID(administrators); ok {
		t.Error("a group is a user")
	}
	if id, ok := d.GroupID("S-1-1-0"); !ok || id < 1<<52 {
		t.Errorf("everyone is %d, %v", id, ok)
	}
	for _, name := range []string{"", "no.such.user", "S-1-x", "-1", "9007199254740992", "a\x00b", `no.such.domain\x`} {
		if id, ok := d.UserID(name); ok {
			t.Errorf("%q is %d", name, id)
		}
	}
	if d.lookupAccountName(1<<53-1) != "9007199254740991" || d.lookupAccountName(-1) != "-1" {
		t.Errorf("unknown accounts are called %s and %s", d.lookupAccountName(1<<53-1), d.lookupAccountName(-1))
	}
}

// Resolver queries the domain at most once a minute for each name. After a timeout it does not query the domain for a
// minute, except with AlwaysQueryRemote. It does not find a group as a user, nor a user as a group.
func TestDomainLookupsAreCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		var fails error
		alice, group := parseSID(t, "S-1-5-21-1-2-3-1104"), parseSID(t, "S-1-5-21-1-2-3-1105")
		d := &Resolver{LookupAccountFunc: func(word string) (WindowsAccount, error) {
			asked = append(asked, word)
			switch word {
			case `CORP\alice`, alice.String():
				return WindowsAccount{SID: alice, QualifiedName: `CORP\alice`, SIDType: windows.SidTypeUser}, fails
			case `CORP\ops`:
				return WindowsAccount{SID: group, QualifiedName: `CORP\ops`, SIDType: windows.SidTypeGroup}, fails
			}
			return WindowsAccount{}, fails
		}}
		for range 3 {
			if id, ok := d.UserID(`CORP\alice`); !ok || id != IDOfSID(alice) {
				t.Errorf("alice is %d, %v", id, ok)
			}
			if id, ok := d.GroupID(`CORP\ops`); !ok || id != IDOfSID(group) {
				t.Errorf("the group is %d, %v", id, ok)
			}
			if _, ok := d.UserID(`CORP\ops`); ok {
				t.Error("a group is a user")
			}
			if _, ok := d.GroupID(`CORP\alice`); ok {
				t.Error("a user is a group")
			}
			if name := d.UserName(IDOfSID(alice)); name != `CORP\alice` {
				t.Errorf("alice is called %s", name)
			}
		}
		if want := []string{`CORP\alice`, `CORP\ops`, alice.String()}; !reflect.DeepEqual(asked, want) {
			t.Errorf("asked for %q, want %q", asked, want)
		}
		time.Sleep(lookupCacheTTL)
		asked, fails = nil, errLookupTimeout
		for n := range 5 {
			d.UserID(fmt.Sprintf(`CORP\user%d`, n))
		}
		if len(asked) != 1 {
			t.Errorf("while the domain does not answer: asked for %q", asked)
		}
		d.AlwaysQueryRemote = true
		if d.UserID(`CORP\x`); !slices.Contains(asked, `CORP\x`) {
			t.Error("AlwaysQueryRemote did not ask")
		}
	})
}

// An error that means "no such account" is a result, not a timeout. So it does not prevent later lookups from querying
// the domain.
func TestUnknownAccountDiffersFromLookupTimeout(t *testing.T) {
	var d Resolver
	for _, err := range noAccountErrors {
		if e, err := d.lookupWindowsAccount(err.Error(), func() (WindowsAccount, error) {
			return WindowsAccount{},
				err
		}); err != nil || e.SID != nil {
			t.Errorf("got %+v, %v", e, err)
		}
	}
	if _, err := d.lookupWindowsAccount("x", func() (WindowsAccount, error) {
		return WindowsAccount{},
			windows.ERROR_NO_LOGON_SERVERS
	}); !errors.Is(err,
		windows.ERROR_NO_LOGON_SERVERS) {
		t.Errorf("got %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		var d Resolver
		end := make(chan struct{})
		if _, err := d.lookupWindowsAccount("x", func() (WindowsAccount, error) {
			<-end
			return WindowsAccount{},
				nil
		}); !errors.Is(err,
			errLookupTimeout) {
			t.Errorf("a domain that hangs: %v", err)
		}
		close(end)
	})
}
