package socket

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/pipe"
	"github.com/queuectl/queuectl/queue"
)

// CheckPath rejects a name that a pipe on this machine cannot have.
func TestInvalidPipeNamesAreRejected(t *testing.T) {
	for name, want := range map[string]bool{
		`\\.\pipe\queuectl`: true, `\\.\PIPE\x`: true, pipePrefix + strings.Repeat("x", MaxPathLength-len(pipePrefix)): true,
		pipePrefix + strings.Repeat("x", MaxPathLength-len(pipePrefix)+1): false, pipePrefix: false, `C:\x.sock`: false,
		`\\server\pipe\queuectl`: false,
		`\\.\pipe\a\b`:           false, "": false, `\\.\pipe\..\PhysicalDrive0`: false, `queuectl`: false,
	} {
		if err := CheckPath(name); (err == nil) != want || err != nil && !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if l, err := Listen(`C:\x.sock`, Perms{SDDL: pipe.OwnerOnlySecurityDescriptor()}); !errors.Is(err, queue.ErrInvalid) {
		t.Errorf("got %v, %v", l, err)
	}
}

// The client trusts a pipe only if its owner is the client's user, the system, the group of administrators or the
// service queuectl. If an administrator creates a pipe without elevation, the owner of the pipe is the administrator's
// own account, not the group.
func TestOnlyTrustedPipeOwnersAreAccepted(t *testing.T) {
	self := "S-1-5-21-1-2-3-1001"
	for owner, want := range map[string]bool{
		self: true, "S-1-5-18": true, "S-1-5-32-544": true,
		"S-1-5-80-1852949550-2142718947-4217460322-1325778689-2237149827": true,
		"S-1-5-21-1-2-3-1002": false, "S-1-5-32-545": false, "S-1-1-0": false, "S-1-5-19": false,
		"S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464": false,
	} {
		o, err1 := windows.StringToSid(owner)
		s, err2 := windows.StringToSid(self)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if got := isTrustedServerOwner(o, s, s); got != want {
			t.Errorf("%s: trusted %v", owner, got)
		}
	}
	if got := accounts.ServiceSID(
		"TrustedInstaller"); got != "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464" {
		t.Errorf("the service that Windows installs by is %s", got)
	}
}

// The error for a user without access to the pipe says how to get access: through the group if it exists,
// otherwise through an administrator.
func TestAccessDeniedErrorExplainsHowToGetAccess(t *testing.T) {
	for _, c := range []struct {
		path  string
		group bool
		want  string
	}{
		{`\\.\pipe\queuectl`, true, `the group command is: net localgroup queuectl "CORP\alice" /add`},
		{`\\.\pipe\queuectl`, false, "[access]"},
		{`\\.\pipe\queuectl-0123456789abcdef`, true, "only its owner and administrators"},
	} {
		got := accessDeniedText(c.path, `CORP\alice`, c.group)
		if !strings.Contains(got, c.want) || !strings.Contains(got, c.path) ||
			!strings.Contains(got, `CORP\alice cannot use`) {
			t.Errorf("%+v: %s", c, got)
		}
	}
	if err := AccessDeniedError(pipePrefix + "x"); !errors.Is(err, queue.ErrDenied) {
		t.Errorf("got %v", err)
	}
}
