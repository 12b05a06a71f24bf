package control

import (
	"sync/atomic"
	"testing"

	"github.com/queuectl/queuectl/control/fair"
)

// While one user's connections wait to be served, another user's connection is served. Each waiting connection
// is served exactly once.
func TestWaitingConnectionsDoNotDelayOtherUsers(t *testing.T) {
	a := newUnservedConns()
	var served atomic.Int64
	// act as if maxStartingGoroutinesPerUser goroutines had not begun to run
	a.startingGoroutineLimiter.ForceAcquire(fair.Request{UserID: 1, Amount: maxStartingGoroutinesPerUser})
	for range 1000 {
		a.startServeGoroutine(t.Context(), 1, func() { served.Add(1) })
	}
	other := make(chan struct{})
	a.startServeGoroutine(t.Context(), 2, func() { close(other) })
	<-other
	if n := served.Load(); n != 0 {
		t.Errorf("%d connections of the first user are served, although its goroutines do not run", n)
	}
	for range maxStartingGoroutinesPerUser {
		a.startingGoroutineLimiter.Release(fair.Request{UserID: 1})
	}
	a.connGoroutines.Wait()
	if n := served.Load(); n != 1000 || a.startingGoroutineLimiter.WaitingCount(1) != 0 {
		t.Errorf("%d of 1000 connections are served, and %d wait", n, a.startingGoroutineLimiter.WaitingCount(1))
	}
}
