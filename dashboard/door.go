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

// Limits of connections.
// See docs/decisions/0084.
const (
	maxStrangers = 256 // of which no visitor is known yet
	// strangerGrace is how long a new connection is kept at least, so that a visitor's request is read before a flood of
	// other connections can push it out. Until then more connections wait in the kernel's queue.
	strangerGrace = 100 * time.Millisecond
	maxKnown      = 1024 // of visitors
	userConns     = userReaders + 40
)

// door keeps the connections of the page apart: of those of nobody known the oldest makes room for the next, and of
// those of visitors the oldest of whoever has most. So nobody keeps others out. Its methods may be called at once.
type door struct {
	mu        sync.Mutex
	strangers list.List          // of *caller, the oldest first; guarded by mu, as is
	known     map[int]*list.List // by uid, the same
	total     int                // of those known
	left      chan struct{}      // receives when a stranger has left; has one slot
}

// caller is a connection at the door.
type caller struct {
	net.Conn
	door *door
	in   *list.List // nil once it is closed; guarded by door.mu, as are
	at   *list.Element
	came time.Time
	uid  int

	out      sync.Mutex
	gathered *bytes.Buffer // what is to be written at once, nil else; guarded by out
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

// gathering has what write writes in parts go out at once: each part would wake the reader by itself.
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

// parts are what is gathered in.
var parts = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// guarded is a listener whose connections come by the door.
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

// forget takes a connection off its list. The caller holds mu.
func (d *door) forget(c *caller) {
	if c.in == nil {
		return
	}
	c.in.Remove(c.at)
	if c.in == &d.strangers {
		select {
		case d.left <- struct{}{}:
		default: // the accepting goroutine does not wait, or knows already
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

// know notes whose a connection is. An error says that this visitor has as many as one may.
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
		return nil // it is closed, or was known before: a proxy's are many visitors'
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

// callerKey is the key of what a request's context has of its connection.
type callerKey struct{}

// withCaller is the context of a connection's requests.
func withCaller(ctx context.Context, c net.Conn) context.Context {
	if secured, is := c.(interface{ NetConn() net.Conn }); is {
		c = secured.NetConn()
	}
	return context.WithValue(ctx, callerKey{}, c)
}

// callerOf is the connection of a request's context.
func callerOf(ctx context.Context) *caller {
	c, _ := ctx.Value(callerKey{}).(*caller) // the server has no others
	return c
}
