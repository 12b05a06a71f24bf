package control

import (
	"sync/atomic"
	"testing"
)

// A user's connections that wait to be served do not delay other users' connections. Each waiting
// connection is served exactly once.
func TestArrivalsOfOneUserDelayNoOther(t *testing.T) {
	a := newAcceptedConns()
	conn := func(uid int) *serverConn { return &serverConn{peer: Peer{UID: uid}} }
	var served atomic.Int64
	a.users[1] = &userStarts{goroutines: maxStarting} // as many goroutines as allowed, which do not run yet
	for range 1000 {
		a.start(conn(1), func() { served.Add(1) })
	}
	other := make(chan struct{})
	a.start(conn(2), func() { close(other) })
	<-other
	if n := served.Load(); n != 0 {
		t.Errorf("%d connections of the first user are served, although its goroutines do not run", n)
	}
	for range maxStarting {
		a.goroutineStarted(1)
	}
	a.goroutines.Wait()
	if n := served.Load(); n != 1000 || len(a.users) != 0 {
		t.Errorf("%d of 1000 connections are served, and %d users have some that wait", n, len(a.users))
	}
}
