package daemon

import (
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/runner/wire"
)

// connectService connects a service to the runner s. epoch is the number of the service's start. accepted reports
// whether the runner accepts the service.
func connectService(t *testing.T, s *server, epoch int64) (c *serviceConn, accepted bool) {
	t.Helper()
	service, runnerEnd := net.Pipe()
	c = newServiceConn(runnerEnd)
	go c.Run() // ends when c is closed
	t.Cleanup(c.close)
	t.Cleanup(func() { service.Close() })
	got := make(chan bool, 1)
	go func() { // ends after the first frame
		f, _ := wire.ReadFrame(service)
		_, ok := f.(*wire.HelloReply)
		got <- ok
	}()
	s.handleFrame(c, &wire.Hello{ProtocolVersion: wire.ProtocolVersion, Epoch: epoch})
	select {
	case accepted = <-got:
	case <-time.After(10 * time.Second):
		t.Fatal("no reply to Hello")
	}
	return c, accepted
}

// The runner executes only frames of the service with the highest epoch, the number of a service start. It refuses
// later services with the same or a lower epoch. When the connection of an older service ends, the newest service stays
// connected.
func TestNewerServiceReplacesConnection(t *testing.T) {
	s := newTestServer(t)
	if !s.isServiceDisconnected() {
		t.Error("a new runner is connected")
	}
	first, ok := connectService(t, s, 5)
	if !ok || s.serviceLink.conn != first || s.isServiceDisconnected() {
		t.Errorf("epoch 5: accepted %t, disconnected %t", ok, s.isServiceDisconnected())
	}
	if c, ok := connectService(t, s, 5); ok || s.serviceLink.conn == c {
		t.Error("a second service with epoch 5 was accepted")
	}
	second, ok := connectService(t, s, 6)
	if !ok || s.serviceLink.conn != second {
		t.Error("epoch 6 was not accepted")
	}
	if s.handleFrame(first, &wire.Shutdown{}) || s.lifetime.phase != runnerServing {
		t.Error("a frame of the older service was executed")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serviceLink.disconnectLocked(first) || s.serviceLink.conn != second {
		t.Error("the end of the older connection ended the newer one")
	}
	if !s.serviceLink.disconnectLocked(second) || s.serviceLink.conn != nil {
		t.Error("the newest connection has not ended")
	}
}

// watchServiceUnit reports only once that the service was stopped permanently. This also holds if a service connects
// and disconnects again before the runner has ended.
func TestStoppedServiceIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, isUnwanted := newTestServer(t), atomic.Bool{}
		s.IsServiceStopped = isUnwanted.Load
		isUnwanted.Store(true)
		stopped := make(chan struct{})
		s.watchServiceUnit(stopped)
		<-stopped
		for epoch, unwanted := range []bool{false, true} {
			c := &serviceConn{}
			s.mu.Lock()
			s.serviceLink.connectLocked(c, int64(epoch+1))
			s.serviceLink.disconnectLocked(c)
			s.mu.Unlock()
			isUnwanted.Store(unwanted)
			time.Sleep(5 * serviceStopCheckInterval)
		}
		s.mu.Lock()
		s.lifetime.phase = runnerEnded
		s.mu.Unlock()
	})
}
