//go:build linux || windows

package control

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// slowClosingConn is a connection whose Close first sends to closeCalls and then waits until release is closed.
type slowClosingConn struct {
	net.Conn
	uid                    int
	closeCalls, allowClose chan struct{}
}

func (c slowClosingConn) Close() error {
	select {
	case c.closeCalls <- struct{}{}:
	case <-c.allowClose:
	}
	<-c.allowClose
	return c.Conn.Close()
}

// connListener is a listener whose Accept returns the connections that are sent to acceptQueue.
type connListener struct {
	acceptQueue chan net.Conn
	closed      chan struct{}
	closeOnce   sync.Once
}

func (l *connListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.acceptQueue:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *connListener) Close() error   { l.closeOnce.Do(func() { close(l.closed) }); return nil }
func (l *connListener) Addr() net.Addr { return &net.UnixAddr{} }

// While an evicted connection is being closed, other users can connect and get answers.
func TestEvictionDelaysNoOtherUser(t *testing.T) {
	l := &connListener{acceptQueue: make(chan net.Conn), closed: make(chan struct{})}
	one := func() (all, user int) { return 100, 1 }
	server := NewServer(noopAPI{}, ConnectionLimits{one}, &fakeAuthorizer{right: RightSubmit}, NewUserLimits(),
		slog.New(slog.DiscardHandler))
	server.identifyPeer = func(c net.Conn) (Peer, error) { return Peer{UID: c.(slowClosingConn).uid}, nil }
	closing, release := make(chan struct{}), make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { server.Run(t.Context(), l) })
	t.Cleanup(func() {
		close(release)
		l.Close()
		running.Wait()
	})
	connect := func(uid int) net.Conn {
		client, served := net.Pipe()
		t.Cleanup(func() { client.Close() })
		select {
		case l.acceptQueue <- slowClosingConn{served, uid, closing, release}:
		case <-time.After(10 * time.Second):
			t.Fatalf("a connection of user %d is not accepted", uid)
		}
		return client
	}
	ask := func(c net.Conn) {
		t.Helper()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.WriteString(c, `{"id":1,"method":"show","params":{"id":"a"}}`+"\n"); err != nil {
			t.Fatal(err)
		}
		if text, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(text, `"result"`) {
			t.Fatalf("the answer is %q, %v", text, err)
		}
	}
	ask(connect(1))
	idle := func() (idle bool) {
		server.servedConns.forEachConn(func(c *serverConn) { _, idle = c.idleSince() })
		return idle
	}
	for !idle() { // wait until the connection is idle: a request counts until its answer was sent
		time.Sleep(time.Millisecond)
	}
	connect(1) // the new connection evicts the first one
	select {
	case <-closing:
	case <-time.After(10 * time.Second):
		t.Fatal("the second connection did not cause the first one to be closed")
	}
	ask(connect(2))
}

// Only idle connections are evicted, that is, connections without a request in progress.
func TestOnlyIdleConnectionsAreEvicted(t *testing.T) {
	table := new(connTable)
	two := ConnectionLimits{func() (all, user int) { return 100, 2 }}
	conn := func() *serverConn { return &serverConn{peer: Peer{UID: 1, Right: RightSubmit}} }
	add := func(c *serverConn, evicts *serverConn, ok bool) {
		t.Helper()
		evicted, err := table.addConn(c, two)
		if (err == nil) != ok || (evicts == nil) != (len(evicted) == 0) || evicts != nil && evicted[0] != evicts {
			t.Fatalf("added with %v, evicting %v", err, evicted)
		}
	}
	first, second, third := conn(), conn(), conn()
	add(first, nil, true)
	first.addActiveRequests(1)
	add(second, nil, true)
	second.addActiveRequests(1)
	second.addActiveRequests(1)
	second.addActiveRequests(-1)
	add(third, nil, false) // no connection is idle
	second.addActiveRequests(-1)
	add(third, second, true)
	second.addActiveRequests(1) // the table ignores this request, because its connection was evicted
	third.addActiveRequests(1)
	add(conn(), nil, false)
	table.removeConn(first)
	fourth := conn()
	add(fourth, nil, true)
	fifth := conn()
	add(fifth, fourth, true)
	third.addActiveRequests(-1)
	fifth.addActiveRequests(1)
	add(conn(), third, true)
}

// One user without access may hold all connections for such users. This does not keep the others out: each new user
// takes a connection from the user with the most, until all have the same number. Connections in use count too.
func TestUsersWithoutAccessShareConnections(t *testing.T) {
	limits := ConnectionLimits{MaxConnections: func() (total, perUser int) { return 100, 50 }}
	var table connTable
	evictedOfUID := map[int]int{}
	add := func(uid int) error {
		t.Helper()
		c := &serverConn{peer: Peer{UID: uid, Right: RightNone}, activeRequestsChangedAt: time.Now()}
		c.addActiveRequests(uid % 2) // the connections of odd uids are in use
		evicted, err := table.addConn(c, limits)
		for _, o := range evicted {
			evictedOfUID[o.peer.UID]++
		}
		return err
	}
	for range maxConnsWithoutAccess {
		if err := add(1); err != nil {
			t.Fatal(err)
		}
	}
	for _, uid := range []int{2, 2, 2, 3, 3} {
		if err := add(uid); err != nil {
			t.Errorf("a connection of user %d: %v", uid, err)
		}
	}
	for _, uid := range []int{1, 2, 3} {
		if err := add(uid); !errors.Is(err, errTooManyConnsWithoutAccess) {
			t.Errorf("a connection of user %d beyond its share: got %v, want a refusal", uid, err)
		}
	}
	want, open := map[int]int{1: 5}, len(table.connsWithoutAccess)
	if !maps.Equal(evictedOfUID, want) || open != maxConnsWithoutAccess {
		t.Errorf("evicted connections by user: got %v, want %v; %d connections are open", evictedOfUID, want, open)
	}
}

// If a user without access has reached the limit per user, a new connection displaces no other user.
func TestUserWithoutAccessAtOwnLimitEvictsNoConnection(t *testing.T) {
	var table connTable
	add := func(uid, maxPerUser, activeRequests int) ([]*serverConn, error) {
		c := &serverConn{peer: Peer{UID: uid, Right: RightNone}, activeRequestsChangedAt: time.Now()}
		c.addActiveRequests(activeRequests)
		return table.addConn(c, ConnectionLimits{MaxConnections: func() (total, perUser int) { return 100, maxPerUser }})
	}
	for i := range maxConnsWithoutAccess {
		if _, err := add(1+i/(maxConnsWithoutAccess-1), maxConnsWithoutAccess, 1); err != nil {
			t.Fatal(err)
		}
	}
	evicted, err := add(2, 1, 1)
	if open := len(table.connsWithoutAccess); err == nil || len(evicted) != 0 || open != maxConnsWithoutAccess {
		t.Errorf("evicted %d connections, error %v, %d connections are open; want none, an error, %d", len(evicted), err,
			open, maxConnsWithoutAccess)
	}
}
