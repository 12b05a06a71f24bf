package dashboard

import (
	"bytes"
	"container/list"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Limits of connections. See docs/decisions/0084.
const (
	maxStrangers = 256 // maximum number of connections without a known visitor
	// strangerGrace is the minimum time for which a new connection is kept. It lets the server read a
	// visitor's request before a flood of other connections can evict it. In the meantime, further
	// connections wait in the kernel's queue.
	strangerGrace = 100 * time.Millisecond
	maxKnown      = 1024 // maximum number of connections with a known visitor
	userConns     = userReaders + 40
)

// door limits the connections of the page, so that no client can keep others out. If there are too many
// connections without a known visitor, the oldest one is closed. If there are too many with one, the oldest
// connection of the visitor who has most is closed. Its methods are safe for concurrent use.
type door struct {
	mu        sync.Mutex
	strangers list.List          // *caller without a known visitor, oldest first; guarded by mu
	known     map[int]*list.List // *caller by uid of the visitor, oldest first; guarded by mu
	total     int                // number of callers in known; guarded by mu
	left      chan struct{}      // wake-up: a stranger has left; has one slot
}

// caller is a connection to the page.
type caller struct {
	net.Conn
	door *door
	// The list that contains the connection; nil once it is closed; guarded by door.mu, like the next three
	// fields.
	in   *list.List
	at   *list.Element
	came time.Time
	uid  int

	out      sync.Mutex
	gathered *bytes.Buffer // bytes collected to be sent in one write; nil outside gathering; guarded by out
}

// Write implements net.Conn.
func (c *caller) Write(p []byte) (int, error) {
	c.out.Lock()
	defer c.out.Unlock()
	if c.gathered != nil {
		return c.gathered.Write(p)
	}
	return c.Conn.Write(p)
}

// gathering calls write and sends everything that it writes in one system call. Otherwise, each part would
// wake the reader.
func (c *caller) gathering(write func() error) error {
	all := parts.Get().(*bytes.Buffer)
	defer parts.Put(all)
	all.Reset()
	c.out.Lock()
	c.gathered = all
	c.out.Unlock()
	err := write()
	c.out.Lock()
	defer c.out.Unlock()
	c.gathered = nil
	if all.Len() > 0 {
		_, failed := c.Conn.Write(all.Bytes())
		err = errors.Join(err, failed)
	}
	return err
}

// parts is a pool of the buffers used by gathering.
var parts = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// guarded is a listener that passes its connections to the door.
type guarded struct {
	net.Listener
	door *door
}

// Accept implements net.Listener.
func (g *guarded) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	is := &caller{Conn: c, door: g.door}
	g.door.come(is)
	return is, nil
}

// come admits a new connection. While the list of strangers is full of connections that are younger than
// strangerGrace, it waits.
func (d *door) come(c *caller) {
	var leaves *caller
	d.mu.Lock()
	for d.strangers.Len() >= maxStrangers {
		oldest := d.strangers.Front().Value.(*caller)
		wait := strangerGrace - time.Since(oldest.came)
		if wait <= 0 {
			leaves = oldest
			d.forget(leaves)
			break
		}
		d.mu.Unlock()
		select {
		case <-time.After(wait):
		case <-d.left:
		}
		d.mu.Lock()
	}
	c.came = time.Now()
	c.in, c.at = &d.strangers, d.strangers.PushBack(c)
	d.mu.Unlock()
	if leaves != nil {
		leaves.Conn.Close()
	}
}

// forget removes a connection from its list. The caller holds mu.
func (d *door) forget(c *caller) {
	if c.in == nil {
		return
	}
	c.in.Remove(c.at)
	if c.in == &d.strangers {
		select {
		case d.left <- struct{}{}:
		default: // the accepting goroutine is not waiting, or has a wake-up already
		}
	} else {
		d.total--
		if c.in.Len() == 0 {
			delete(d.known, c.uid)
		}
	}
	c.in, c.at = nil, nil
}

// Close implements net.Conn.
func (c *caller) Close() error {
	c.door.mu.Lock()
	c.door.forget(c)
	c.door.mu.Unlock()
	return c.Conn.Close()
}

// know records the visitor of a connection. It returns an error if the visitor has too many connections.
func (d *door) know(c *caller, uid int) error {
	d.mu.Lock()
	var leaves *caller
	defer func() {
		d.mu.Unlock()
		if leaves != nil {
			leaves.Conn.Close()
		}
	}()
	if c.in == nil || c.in != &d.strangers {
		return nil // closed, or recorded before: a proxy's connection carries several visitors
	}
	if own := d.known[uid]; own != nil && own.Len() >= userConns {
		return queue.Errorf(queue.CodeUnavailable, "you have %d connections to the page, the limit for one user; close some windows", userConns)
	}
	if d.total >= maxKnown {
		most := (*list.List)(nil)
		for _, l := range d.known {
			if most == nil || l.Len() > most.Len() {
				most = l
			}
		}
		leaves = most.Front().Value.(*caller)
		d.forget(leaves)
	}
	d.forget(c)
	if d.known == nil {
		d.known = map[int]*list.List{}
	}
	if d.known[uid] == nil {
		d.known[uid] = list.New()
	}
	c.uid, c.in = uid, d.known[uid]
	c.at = c.in.PushBack(c)
	d.total++
	return nil
}

// callerKey is the context key of a request's connection.
type callerKey struct{}

// withCaller adds a connection to the context of its requests.
func withCaller(ctx context.Context, c net.Conn) context.Context {
	if secured, is := c.(interface{ NetConn() net.Conn }); is {
		c = secured.NetConn()
	}
	return context.WithValue(ctx, callerKey{}, c)
}

// callerOf returns the connection from a request's context.
func callerOf(ctx context.Context) *caller {
	c, _ := ctx.Value(callerKey{}).(*caller) // all connections of the server have this type
	return c
}
