package dashboard

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// A new connection is admitted even if a limit is reached. If too many connections are unidentified, that is, no
// request has shown their user, the oldest of them is closed. If too many connections are identified, the oldest
// connection of the user with the most connections is closed.
func TestFullConnLimiterAdmitsNewConnections(t *testing.T) {
	synctest.Test(t, testFullConnLimiterAdmitsNewConnections)
}

func testFullConnLimiterAdmitsNewConnections(t *testing.T) {
	d := newConnLimiter()
	come := func() (*pageConn, net.Conn) {
		server, client := net.Pipe()
		t.Cleanup(func() { client.Close() })
		c := &pageConn{Conn: server, limiter: d}
		d.admitConn(c)
		return c, client
	}
	isClosed := func(c *pageConn) bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return c.containingList == nil
	}
	enter := func(uid int) *pageConn {
		t.Helper()
		c, _ := come()
		if err := d.setConnUser(connFromContext(withConn(context.Background(), c)), uid); err != nil {
			t.Fatalf("user %d is refused: %v", uid, err)
		}
		return c
	}
	visitor := enter(7)
	first, other := come()
	second, _ := come()
	for range maxUnidentifiedConns - 1 {
		come()
	}
	if _, err := other.Read(make([]byte, 1)); err == nil || !isClosed(first) || isClosed(second) || isClosed(visitor) {
		t.Errorf("the oldest unidentified connection was not closed: %v; closed: the next one %t, the visitor %t", err,
			isClosed(second), isClosed(visitor))
	}
	greedy := enter(8)
	for range maxUserConns - 1 {
		enter(8)
	}
	c, _ := come()
	if err := d.setConnUser(connFromContext(withConn(context.Background(), c)), 8); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("identify of one connection too many returned %v", err)
	}
	for range maxIdentifiedConns - maxUserConns - 1 {
		enter(9)
	}
	if isClosed(greedy) || len(d.identifiedConns) != maxIdentifiedConns {
		t.Fatalf("%d connections are identified, want %d", len(d.identifiedConns), maxIdentifiedConns)
	}
	enter(7)
	if !isClosed(greedy) || isClosed(visitor) || len(d.identifiedConns) != maxIdentifiedConns {
		t.Errorf("closed: user 8's oldest connection %t, user 7's %t; %d are identified", isClosed(greedy),
			isClosed(visitor), len(d.identifiedConns))
	}
	visitor.Close()
	visitor.Close()
	if len(d.identifiedConns) != maxIdentifiedConns-1 || d.userConnLimiter.InUse(7, 0) != 1 {
		t.Errorf("after one connection was closed, %d connections are identified", len(d.identifiedConns))
	}
}

// During a flood of connections, each connection stays open long enough for the server to read a first request. Further
// connections wait to be accepted.
func TestNewConnectionSurvivesConnectionFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newConnLimiter()
		come := func() *pageConn {
			server, client := net.Pipe()
			t.Cleanup(func() { client.Close() })
			c := &pageConn{Conn: server, limiter: d}
			d.admitConn(c)
			return c
		}
		begun := time.Now()
		visitor := come()
		for range maxUnidentifiedConns - 1 {
			come()
		}
		flooded := make(chan *pageConn)
		go func() { flooded <- come() }()
		time.Sleep(unidentifiedConnGracePeriod - time.Millisecond)
		synctest.Wait()
		if visitor.containingList == nil {
			t.Fatal("the connection was closed within unidentifiedGrace")
		}
		if err := d.setConnUser(visitor, 7); err != nil { // the server has read the request
			t.Fatal(err)
		}
		if <-flooded; time.Since(begun) >= unidentifiedConnGracePeriod {
			t.Errorf("the next connection waited %v although another one had been closed", time.Since(begun))
		}
		come()
		if time.Since(begun) != unidentifiedConnGracePeriod || visitor.containingList == nil {
			t.Errorf("one more connection waited %v, want %v; the visitor is closed: %t", time.Since(begun),
				unidentifiedConnGracePeriod,
				visitor.containingList == nil)
		}
	})
}

// countingConn is a connection that counts the calls of Write.
type countingConn struct {
	net.Conn
	writeCount int
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.writeCount++
	return len(p), nil
}

// The server sends an event with a single write, because several writes would wake the browser several times.
func TestServerSentEventIsOneWrite(t *testing.T) {
	conn := &countingConn{}
	c := &pageConn{Conn: conn, limiter: newConnLimiter()}
	err := c.batchWrites(func() error {
		for _, part := range []string{"2328\r\n", "event: fragments", "\r\n"} {
			if _, err := c.Write([]byte(part)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || conn.writeCount != 1 {
		t.Errorf("the event took %d writes, %v", conn.writeCount, err)
	}
	if _, err := c.Write([]byte("more")); err != nil || conn.writeCount != 2 {
		t.Errorf("a write after the event took %d writes, %v", conn.writeCount-1, err)
	}
}
