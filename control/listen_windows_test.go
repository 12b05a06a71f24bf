package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/pipe"
	"github.com/queuectl/queuectl/queue"
)

// tempSocket returns a name for a pipe.
func tempSocket(t *testing.T) string {
	return fmt.Sprintf(`%squeuectl-test-%d-%s`, pipes, os.Getpid(), filepath.Base(t.TempDir())+t.Name())
}

// ownerOnly returns permissions that admit the owner of the pipe, the system and administrators.
func ownerOnly() SocketPerms { return SocketPerms{SDDL: pipe.OwnerOnly()} }

// A name that no pipe on this machine can have is rejected.
func TestPipeNames(t *testing.T) {
	for name, want := range map[string]bool{
		`\\.\pipe\queuectl`: true, `\\.\PIPE\x`: true, pipes + strings.Repeat("x", MaxSocketPath-len(pipes)): true,
		pipes + strings.Repeat("x", MaxSocketPath-len(pipes)+1): false, pipes: false, `C:\x.sock`: false,
		`\\server\pipe\queuectl`: false,
		`\\.\pipe\a\b`:           false, "": false, `\\.\pipe\..\PhysicalDrive0`: false, `queuectl`: false,
	} {
		if err := CheckSocketPath(name); (err == nil) != want || err != nil && !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if l, err := Listen(`C:\x.sock`, ownerOnly()); !errors.Is(err, queue.ErrInvalid) {
		t.Errorf("got %v, %v", l, err)
	}
}

// The client does not trust a pipe of another user. A pipe that an administrator creates without
// elevation belongs to the administrator's account.
func TestTrustedServers(t *testing.T) {
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
		if got := trusted(o, s, s); got != want {
			t.Errorf("%s: trusted %v", owner, got)
		}
	}
	if got := accounts.ServiceSID(
		"TrustedInstaller"); got != "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464" {
		t.Errorf("the service that Windows installs by is %s", got)
	}
}

// Root is true for the system and for elevated administrators.
func TestRoot(t *testing.T) {
	for _, c := range []struct {
		Peer
		want bool
	}{{Peer{UID: 0}, true}, {Peer{UID: 1000, Groups: []int{545, 544}}, true},
		{Peer{UID: 1000, GID: 544, Groups: []int{545}}, false}, {Peer{UID: 544}, false}} {
		if got := c.Root(); got != c.want {
			t.Errorf("%+v: %v", c.Peer, got)
		}
	}
}

// PeerOf returns all groups of the client that are relevant for access.
func TestPeerOfReturnsRelevantGroups(t *testing.T) {
	d := &fakeAuthorizer{right: Admin}
	if _, err := client(t, serve(t, d)).Show(t.Context(), Show{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	self, err := pipe.Self()
	if err != nil {
		t.Fatal(err)
	}
	var want []int
	for _, g := range self.Groups {
		want = append(want, accounts.ID(g))
	}
	if p := d.peers[0]; !slices.Equal(p.Groups, want) || len(want) == 0 || p.GID != noGroup {
		t.Errorf("got %+v, want the groups %v", p, want)
	}
}

// The error for a user who cannot use the pipe explains how to get access: through the group if it
// exists, otherwise through an administrator.
func TestAccessErrorExplainsHowToGetAccess(t *testing.T) {
	for _, c := range []struct {
		path  string
		group bool
		want  string
	}{
		{`\\.\pipe\queuectl`, true, `the group command is: net localgroup queuectl "CORP\alice" /add`},
		{`\\.\pipe\queuectl`, false, "[access]"},
		{`\\.\pipe\queuectl-0123456789abcdef`, true, "only its owner and administrators"},
	} {
		got := closedTo(c.path, `CORP\alice`, c.group)
		if !strings.Contains(got, c.want) || !strings.Contains(got, c.path) || !strings.Contains(got, `CORP\alice cannot use`) {
			t.Errorf("%+v: %s", c, got)
		}
	}
	if err := noAccess(pipes + "x"); !errors.Is(err, queue.ErrDenied) {
		t.Errorf("got %v", err)
	}
}

// A program that opens the pipe as a file and sends nothing does not delay the end of the service.
func TestSilentClientDoesNotDelayStop(t *testing.T) {
	socket := tempSocket(t)
	began := time.Now()
	l := listen(t, socket)
	ctx, stop := context.WithCancel(t.Context())
	many := func() (all, user int) { return 100, 100 }
	var serving sync.WaitGroup
	serving.Go(func() {
		NewServer(&fakeAPI{}, Limits{many}, allowAll{}, new(UserLimits), slog.New(slog.DiscardHandler)).Run(ctx, l)
	})
	plain, err := os.OpenFile(socket, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	stop()
	serving.Wait()
	if took := time.Since(began); took > firstLineTimeout/2 {
		t.Errorf("it took %v", took)
	}
}
