package control

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/control/fair"
)

// countedConn is a connection that decrements the counter openCount when it is closed for the first time.
type countedConn struct {
	net.Conn
	openCount *atomic.Int64
	closed    atomic.Bool
}

func (c *countedConn) Close() error {
	if !c.closed.Swap(true) {
		c.openCount.Add(-1)
	}
	return c.Conn.Close()
}

// A user may connect faster than the server can serve the connections. Even then, the user never has more open
// connections than the limit per user, plus the connections that are being closed.
func TestFastConnectingUserStaysWithinConnectionLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const share = 8
		limits := ConnectionLimits{func() (all, user int) { return 100, share }}
		server := NewServer(noopAPI{}, limits, &fakeAuthorizer{right: RightSubmit}, NewUserLimits(),
			slog.New(slog.DiscardHandler))
		server.identifyPeer = func(net.Conn) (Peer, error) { return Peer{UID: 1}, nil }
		a := newUnservedConns()
		// act as if maxStartingGoroutinesPerUser goroutines had not begun to run
		a.startingGoroutineLimiter.ForceAcquire(fair.Request{UserID: 1, Amount: maxStartingGoroutinesPerUser})
		var open atomic.Int64
		var clients []net.Conn
		most := int64(0)
		for range share + 1000 {
			client, served := net.Pipe()
			clients = append(clients, client)
			open.Add(1)
			server.admitAndStartServing(t.Context(), &countedConn{Conn: served, openCount: &open}, a)
			most = max(most, open.Load())
		}
		if most > share+maxConcurrentEvictionCloses {
			t.Errorf("up to %d connections were open together, want at most %d and %d that are being closed", most, share,
				maxConcurrentEvictionCloses)
		}
		synctest.Wait()
		if n := open.Load(); n != share {
			t.Errorf("%d connections are open, want %d", n, share)
		}
		if n := a.startingGoroutineLimiter.WaitingCount(1); n != share {
			t.Errorf("%d connections wait to be served, want %d", n, share)
		}
		for _, c := range clients {
			c.Close()
		}
		for range maxStartingGoroutinesPerUser {
			a.startingGoroutineLimiter.Release(fair.Request{UserID: 1})
		}
		a.connGoroutines.Wait()
		if n := open.Load(); n != 0 || a.startingGoroutineLimiter.WaitingCount(1) != 0 {
			t.Errorf("%d connections are open and %d wait, want none", n, a.startingGoroutineLimiter.WaitingCount(1))
		}
	})
}

// While maxConcurrentConnRefusals refusals wait for a slow lookup of names, further users without access are refused
// with an error without names, and other users are served.
func TestSlowRefusalsDoNotBlockOtherUsers(t *testing.T) {
	known := make(chan struct{})
	d := &fakeAuthorizer{onMissingRightError: func() { <-known }}
	socket := serveUntilTestEnds(t, d)
	d.setRightOfAllUsers(RightNone)
	defer close(known)
	var last net.Conn
	for range maxConnsWithoutAccess + maxConcurrentConnRefusals + 1 {
		last = dial(t, socket)
		defer last.Close()
	}
	last.SetDeadline(time.Now().Add(10 * time.Second))
	line, err := bufio.NewReader(last).ReadString('\n')
	if !strings.Contains(line, `"denied"`) || !strings.Contains(line, "ask an admin to grant you a right") {
		t.Errorf("the answer beyond %d refusals is %q, %v, want a refusal", maxConcurrentConnRefusals, line, err)
	}
	d.setRightOfAllUsers(RightAdmin)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := newTestClient(t, socket).Hello(ctx, HelloParams{}); err != nil {
		t.Errorf("another user's connection during the refusals: %v", err)
	}
}
