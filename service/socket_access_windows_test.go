package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/lockfile"
	"github.com/queuectl/queuectl/internal/pipe"
	"github.com/queuectl/queuectl/queue"
)

// holdStateDirLock takes the lock of a state directory.
func holdStateDirLock(path string) (*os.File, error) {
	f, ok, err := lockfile.Acquire(path, true)
	if err == nil && !ok {
		err = errors.New("the lock is taken")
	}
	return f, err
}

// newStartupWithAccess returns the startup of a service with the given settings access.*, and the log of that
// service.
func newStartupWithAccess(t *testing.T, accessSettings map[string]string) (*startup, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	b, err := readStartupSettings(Options{Paths: config.Paths{SettingsFile: `C:\q.toml`,
		SocketPath: fmt.Sprintf(`\\.\pipe\queuectl-test-%d-%s`, os.Getpid(), t.Name())}})
	if err == nil {
		err = b.Settings.ReplaceFileLayer(config.Layer{Origin: config.FromFile, ValuesBySetting: accessSettings})
	}
	if err != nil {
		t.Fatal(err)
	}
	b.Log = slog.New(slog.NewTextHandler(&log, nil))
	b.Rights.ResolveAccessSettings()
	return b, &log
}

// Accounts to which the settings access.* give a right can connect to the pipe, but cannot create it. The
// system, administrators and the service's own account can connect too. Unknown names are logged.
func TestPipeAdmitsAccountsWithARight(t *testing.T) {
	s, log := newStartupWithAccess(t, map[string]string{
		"access.read": "S-1-5-21-1-2-3-1104 no.such.user 546", "access.submit": "@S-1-5-32-545 @S-1-5-21-1-2-3-513",
		"access.operate": "@no.such.group", "access.admin": "546 9007199254740991",
	})
	perms, err := s.socketPerms(nil)
	if err != nil {
		t.Fatal(err)
	}
	own := pipe.OwnerOnlySecurityDescriptor()
	rest, ok := strings.CutPrefix(perms.SDDL, own)
	if !ok || !strings.HasPrefix(own, "D:P(A;;GA;;;SY)(A;;GA;;;BA)(A;;GA;;;S-1-5-") {
		t.Errorf("got %s", perms.SDDL)
	}
	if want := "(A;;0x12019b;;;S-1-5-32-546)(A;;0x12019b;;;S-1-5-21-1-2-3-1104)(A;;0x12019b;;;S-1-5-32-545)(A;;0x12019b;;;S-1-5-21-1-2-3-513)"; rest != want {
		t.Errorf("clients are %s, want %s", rest, want)
	}
	for _, name := range []string{"no.such.user", "@no.such.group"} {
		if !strings.Contains(s.Rights.UnknownAccessNamesMessage(), name) {
			t.Errorf("%s is not reported: %s", name, s.Rights.UnknownAccessNamesMessage())
		}
	}
	if !strings.Contains(log.String(), "9007199254740991") {
		t.Errorf("an unknown number is not reported: %s", log.String())
	}
	if s, _ := newStartupWithAccess(t,
		nil); len(s.Rights.CurrentAccess().RightsByUID)+len(s.Rights.CurrentAccess().RightsByGID) != 0 {
		t.Errorf("a user's own service admits others: %+v", s.Rights.CurrentAccess())
	}
}

// The system, elevated administrators and the service's own user have all rights. An administrator without
// elevation has only the rights that the settings access.* give.
func TestPipeRightsDependOnAccount(t *testing.T) {
	s, _ := newStartupWithAccess(t, map[string]string{"access.submit": "@S-1-5-32-545",
		"access.read": "S-1-5-21-1-2-3-1104"})
	for _, c := range []struct {
		peer control.Peer
		want control.Right
	}{
		{control.Peer{UID: 0}, control.RightAdmin}, {control.Peer{UID: accounts.CurrentUserID()}, control.RightAdmin},
		{control.Peer{UID: 1 << 52, Groups: []int{544, 545}}, control.RightAdmin},
		{control.Peer{UID: 1 << 52, GID: -1, Groups: []int{545}}, control.RightSubmit},
		{control.Peer{UID: 1 << 52, GID: -1}, control.RightNone},
	} {
		if got := s.Rights.CurrentRight(&c.peer); got != c.want {
			t.Errorf("%+v: got %s, want %s", c.peer, got, c.want)
		}
	}
	var e *queue.Error
	if err := s.Rights.MissingRightError(&control.Peer{UID: 1 << 52, Right: control.RightNone}, "list",
		control.RightRead); !errors.As(err,
		&e) || !strings.Contains(e.Message, `net localgroup S-1-5-32-545 "4503599627370496" /add`) {
		t.Errorf("got %v", err)
	}
}

// A change of the settings access.* applies to the pipe immediately.
func TestAccessSettingChangeAppliesToPipe(t *testing.T) {
	s, log := newStartupWithAccess(t, nil)
	perms, err := s.socketPerms(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.openControlSocket(perms); err != nil {
		t.Fatal(err)
	}
	defer s.socket.Close()
	if err := s.Settings.ReplaceFileLayer(config.Layer{Origin: config.FromFile,
		ValuesBySetting: map[string]string{"access.submit": "@S-1-5-32-546"}}); err != nil {
		t.Fatal(err)
	}
	s.Rights.ResolveAccessSettings()
	s.updateSocketAccess()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := socket.Dial(ctx, s.Paths.SocketPath)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sd, err := windows.GetSecurityInfo(windows.Handle(c.(interface{ Fd() uintptr }).Fd()), windows.SE_KERNEL_OBJECT,
		windows.DACL_SECURITY_INFORMATION)
	if err != nil || !strings.Contains(sd.String(), "(A;;0x12019b;;;BG)") || log.Len() > 0 {
		t.Errorf("the pipe admits %s, %v; %s", sd, err, log)
	}
}
