package dashboard

import (
	"bytes"
	"container/list"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control/fair"
	"github.com/queuectl/queuectl/queue"
)

// These constants are limits on connections. See docs/decisions/0084.
const (
	maxUnidentifiedConns = 256 // maximum number of connections without a known visitor
	// unidentifiedGrace is the minimum time for which a new connection is kept. In this time the server can read the
	// first request on the connection. During a flood, further connections wait in the kernel's queue.
	unidentifiedGrace  = 100 * time.Millisecond
	maxIdentifiedConns = 1024                // maximum number of connections with a known visitor
	maxUserConns       = maxUserReaders + 40 // maximum number of identified connections of one user
)

// connLimit limits the connections of the page, so that no client can keep other clients out. A connection is
// unidentified until a request on it has shown which user it belongs to. If there are too many unidentified
// connections, connLimit closes the oldest of them. If there are too many identified ones, it closes the oldest
// connection of the user with the most. Its methods are safe for concurrent use.
type connLimit struct {
	mu                sync.Mutex
	unidentifiedConns list.List     // unidentified *pageConn, oldest first; guarded by mu
	identifiedConns   list.List     // identified *pageConn, oldest first; guarded by mu
	users             *fair.Limiter // number of identified connections by user
	slotFreed         chan struct{} // receives a value when a connection leaves unidentifiedConns
}

func newConnLimit() *connLimit {
	return &connLimit{users: fair.NewLimiter(fair.Bound{Max: maxUserConns}), slotFreed: make(chan struct{}, 1)}
}

// pageConn is a connection of the web page.
type pageConn struct {
	net.Conn
	limit *connLimit
	// list is the list of connLimit that contains the connection; nil once the connection is closed. list and
	// the next three fields are guarded by limit.mu.
	list       *list.List
	element    *list.Element
	acceptedAt time.Time
	uid        int // user of an identified connection

	writeMu sync.Mutex
	buffer  *bytes.Buffer // buffers written bytes during batchWrites, else nil; guarded by writeMu
}

// Write implements net.Conn.
func (c *pageConn) Write(p []byte) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if c.buffer != nil {
		return c.buffer.Write(p)
	}
	return c.Conn.Write(p)
}

// batchWrites calls the given function, and sends everything that it writes in one system call. Otherwise each
// part would wake the client.
func (c *pageConn) batchWrites(write func() error) error {
	all := new(bytes.Buffer)
	c.writeMu.Lock()
	c.buffer = all
	c.writeMu.Unlock()
	err := write()
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	c.buffer = nil
	if all.Len() > 0 {
		_, failed := c.Conn.Write(all.Bytes())
		err = errors.Join(err, failed)
	}
	return err
}

// limitedListener is a listener that adds its connections to a connLimit.
type limitedListener struct {
	net.Listener
	limit *connLimit
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	admitted := &pageConn{Conn: c, limit: l.limit}
	l.limit.admit(admitted)
	return admitted, nil
}

// admit adds a new connection. If there are maxUnidentifiedConns unidentified connections, it first waits until
// the oldest is as old as unidentifiedGrace, and then closes the oldest.
func (l *connLimit) admit(c *pageConn) {
	var victim *pageConn
	l.mu.Lock()
	for l.unidentifiedConns.Len() >= maxUnidentifiedConns {
		oldest := l.unidentifiedConns.Front().Value.(*pageConn)
		wait := unidentifiedGrace - time.Since(oldest.acceptedAt)
		if wait <= 0 {
			victim = oldest
			l.remove(victim)
			break
		}
		l.mu.Unlock()
		select {
		case <-time.After(wait):
		case <-l.slotFreed:
		}
		l.mu.Lock()
	}
	c.acceptedAt = time.Now()
	c.list, c.element = &l.unidentifiedConns, l.unidentifiedConns.PushBack(c)
	l.mu.Unlock()
	if victim != nil {
		victim.Conn.Close()
	}
}

// remove removes a connection from its list, if it is in one. The caller holds mu.
func (l *connLimit) remove(c *pageConn) {
	if c.list == nil {
		return
	}
	c.list.Remove(c.element)
	if c.list == &l.unidentifiedConns {
		queue.TrySend(l.slotFreed, struct{}{})
	} else {
		l.users.Release(fair.Request{User: c.uid})
	}
	c.list, c.element = nil, nil
}

// Close implements net.Conn.
func (c *pageConn) Close() error {
	c.limit.mu.Lock()
	c.limit.remove(c)
	c.limit.mu.Unlock()
	return c.Conn.Close()
}

// identify records which user a connection belongs to. It returns an error if the user has too many
// connections.
func (l *connLimit) identify(c *pageConn, uid int) error {
	l.mu.Lock()
	var victim *pageConn
	defer func() {
		l.mu.Unlock()
		if victim != nil {
			victim.Conn.Close()
		}
	}()
	if c.list == nil || c.list != &l.unidentifiedConns {
		// The connection is closed, or an earlier request has identified it. Behind a proxy, that request may
		// be another user's.
		return nil
	}
	if !l.users.TryAcquire(fair.Request{User: uid}) {
		return queue.Errorf(queue.CodeUnavailable, "you have %d connections to the page, the limit for one "+
			"user; close some windows", maxUserConns)
	}
	if l.identifiedConns.Len() >= maxIdentifiedConns {
		victim = l.oldestOfLargest()
		l.remove(victim)
	}
	l.remove(c)
	c.uid, c.list = uid, &l.identifiedConns
	c.element = c.list.PushBack(c)
	return nil
}

// oldestOfLargest returns the oldest connection of the user with the most connections. The caller holds mu.
func (l *connLimit) oldestOfLargest() (oldest *pageConn) {
	most := int64(0)
	for e := l.identifiedConns.Front(); e != nil; e = e.Next() {
		c := e.Value.(*pageConn)
		if n := l.users.InUse(c.uid, 0); n > most {
			oldest, most = c, n
		}
	}
	return oldest
}

// connKey is the key under which the context of a request contains the connection.
type connKey struct{}

// withConn returns a context for the requests on a connection. connOf returns the connection from it.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secured.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// connOf returns the connection of a request from the request's context.
func connOf(ctx context.Context) *pageConn {
	c, _ := ctx.Value(connKey{}).(*pageConn) // every connection of the server has this type
	return c
}
