package statedir

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/accounts"
)

// A new state directory admits no other accounts, regardless of its parent.
func TestNewStateDirIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		if err := makePrivateDir(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := CheckUnwritableByOthers(dir); err != nil {
		t.Error(err)
	}
	sd, err := accounts.ReadSecurityDescriptor(dir)
	if err != nil {
		t.Fatal(err)
	}
	if others, err := accounts.UntrustedAccountsWithRights(sd, ^windows.ACCESS_MASK(0), 0); err != nil || len(others) > 0 {
		t.Errorf("open to %v, %v", others, err)
	}
}

// checkSecurityDescriptor rejects a state directory that belongs to another account or that other accounts may change.
// It accepts a directory that other accounts may only read.
func TestStateDirWritableByOthersIsRejected(t *testing.T) {
	for sddl, why := range map[string]string{
		"O:BAD:P(A;;FA;;;SY)(A;;FA;;;BA)": "", "O:SYD:P(A;;FA;;;S-1-5-80-1-2-3-4-5)(A;OICIIO;FA;;;CO)(A;;FR;;;BU)": "",
		"O:BUD:P(A;;FA;;;BA)": "belongs to", "O:S-1-5-80-0D:P(A;;FA;;;BA)": "belongs to", "D:P(A;;FA;;;BA)": "no owner",
		"O:BAD:P(A;;FW;;;BU)": "by other users", "O:BAD:P(A;;FA;;;OW)(A;;FA;;;SY)": "",
		"O:BAD:P(A;OICIIO;FA;;;S-1-5-80-0)": "by other users",
	} {
		sd, err := windows.SecurityDescriptorFromString(sddl)
		if err != nil {
			t.Fatal(sddl, err)
		}
		if err := checkSecurityDescriptor(`C:\q`, sd); (err == nil) != (why == "") || err != nil &&
			!strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", sddl, err, why)
		}
	}
}
