package dashboard

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// Whoever fills the door shuts it for nobody: the oldest of nobody known gives way to the next, and of visitors the oldest
// of whoever has most.
func TestDoorIsShutForNobody(t *testing.T) {
	var d door
	come := func() (*caller, net.Conn) {
		here, there := net.Pipe()
		t.Cleanup(func() { there.Close() })
		c := &caller{Conn: here, door: &d}
		d.come(c)
		return c, there
	}
	over := func(c *caller) bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return c.in == nil
	}
	enter := func(uid int) *caller {
		t.Helper()
		c, _ := come()
		if err := d.know(callerOf(withCaller(context.Background(), c)), uid); err != nil {
			t.Fatalf("user %d is refused: %v", uid, err)
		}
		return c
	}
	visitor := enter(7)
	first, other := come()
	second, _ := come()
	for range maxStrangers - 1 {
		come()
	}
	if _, err := other.Read(make([]byte, 1)); err == nil || !over(first) || over(second) || over(visitor) {
		t.Errorf("the oldest stranger stays: %v; the next one or the visitor went: %t, %t", err, over(second), over(visitor))
	}
	greedy := enter(8)
	for range userConns - 1 {
		enter(8)
	}
	c, _ := come()
	if err := d.know(callerOf(withCaller(context.Background(), c)), 8); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("one connection more is answered by %v", err)
	}
	for range maxKnown - userConns - 1 {
		enter(9)
	}
	if over(greedy) || d.total != maxKnown {
		t.Fatalf("%d of %d visitors are there", d.total, maxKnown)
	}
	enter(7)
	if !over(greedy) || over(visitor) || d.total != maxKnown {
		t.Errorf("not the oldest of user 8 gave way: %t, %t, %d", over(greedy), over(visitor), d.total)
	}
	visitor.Close()
	visitor.Close()
	if d.total != maxKnown-1 || d.known[7].Len() != 1 {
		t.Errorf("after one left %d are counted", d.total)
	}
}

// counting counts the writes of a connection.
type counting struct {
	net.Conn
	writes int
}

func (c *counting) Write(p []byte) (int, error) {
	c.writes++
	return len(p), nil
}

// An event goes out at once, however many parts it has: 500 browsers would be woken for each.
func TestAnEventIsOneWrite(t *testing.T) {
	conn := &counting{}
	c := &caller{Conn: conn, door: &door{}}
	err := c.gathering(func() error {
		for _, part := range []string{"2328\r\n", "event: fragments", "\r\n"} {
			if _, err := c.Write([]byte(part)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || conn.writes != 1 {
		t.Errorf("it took %d writes, %v", conn.writes, err)
	}
	if _, err := c.Write([]byte("more")); err != nil || conn.writes != 2 {
		t.Errorf("what is written after it took %d writes, %v", conn.writes-1, err)
	}
}
