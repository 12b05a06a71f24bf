package control

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/pipe"
)

// tempSocketPath returns a name for a pipe.
func tempSocketPath(t *testing.T) string {
	return fmt.Sprintf(`\\.\pipe\queuectl-test-%d-%s`, os.Getpid(), filepath.Base(t.TempDir())+t.Name())
}

// ownerOnlySocketPerms returns permissions that admit the owner of the pipe, the system and administrators.
func ownerOnlySocketPerms() socket.Perms {
	return socket.Perms{SDDL: pipe.OwnerOnlySecurityDescriptor()}
}

// IsRoot returns true for the system and for elevated administrators, and false for all others.
func TestIsRootAcceptsSystemAndElevatedAdmins(t *testing.T) {
	for _, c := range []struct {
		Peer
		want bool
	}{{Peer{UID: 0}, true}, {Peer{UID: 1000, Groups: []int{545, 544}}, true},
		{Peer{UID: 1000, GID: 544, Groups: []int{545}}, false}, {Peer{UID: 544}, false}} {
		if got := c.IsRoot(); got != c.want {
			t.Errorf("%+v: %v", c.Peer, got)
		}
	}
}

// PeerOf returns all groups of the client to which a right can be granted.
func TestPeerOfReturnsGroupsThatMayHaveRights(t *testing.T) {
	d := &fakeAuthorizer{right: RightAdmin}
	if _, err := newTestClient(t, serveUntilTestEnds(t, d)).ShowJob(t.Context(), JobShowParams{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	self, err := pipe.SelfIdentity()
	if err != nil {
		t.Fatal(err)
	}
	var want []int
	for _, g := range self.EnabledGroups {
		want = append(want, accounts.IDOfSID(g))
	}
	if p := d.showJobCallers[0]; !slices.Equal(p.Groups, want) || len(want) == 0 || p.GID != -1 {
		t.Errorf("got %+v, want the groups %v", p, want)
	}
}

// The service stops without delay, even if a program has opened the pipe like an ordinary file and sends nothing.
func TestSilentClientDoesNotDelayStop(t *testing.T) {
	path := tempSocketPath(t)
	began := time.Now()
	l := listen(t, path)
	ctx, stop := context.WithCancel(t.Context())
	many := func() (all, user int) { return 100, 100 }
	var serving sync.WaitGroup
	serving.Go(func() {
		NewServer(&fakeAPI{}, ConnectionLimits{many}, allowAllAuthorizer{}, NewUserLimits(),
			slog.New(slog.DiscardHandler)).Run(ctx, l)
	})
	plain, err := os.OpenFile(path, os.O_RDWR, 0)
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
