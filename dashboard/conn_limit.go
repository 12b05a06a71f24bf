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
	// unidentifiedGrace is the minimum time for which a new connection is kept, so that the server
	// can read the first request before a flood of connections closes the connection. During
	// this time, further connections wait in the kernel's queue.
	unidentifiedGrace  = 100 * time.Millisecond
	maxIdentifiedConns = 1024 // maximum number of connections with a known visitor
	maxUserConns       = maxUserReaders + 40
)

// connLimit limits the connections of the page, so that no client can keep other clients out. If
// too many connections have no known visitor, it closes the oldest of them. If too many have a
// known visitor, it closes the oldest connection of the visitor with the most connections. Its
// methods are safe for concurrent use.
type connLimit struct {
	mu                sync.Mutex
	unidentifiedConns list.List     // *pageConn without a known visitor, oldest first; guarded by mu
	identifiedConns   list.List     // *pageConn with a known visitor, oldest first; guarded by mu
	users             *fair.Limiter // number of identified connections by visitor
	slotFreed         chan struct{} // receives a value when a connection has left unidentifiedConns; buffers one value
}

func newConnLimit() *connLimit {
	return &connLimit{users: fair.NewLimiter(fair.Bound{Max: maxUserConns}), slotFreed: make(chan struct{}, 1)}
}

// pageConn is a connection to the page.
type pageConn struct {
	net.Conn
	limit *connLimit
	// list is the list that contains the connection, and nil if the connection is closed. It is
	// guarded by limit.mu, like the next three fields.
	list       *list.List
	element    *list.Element
	acceptedAt time.Time
	uid        int

	writeMu sync.Mutex
	buffer  *bytes.Buffer // bytes to send in one write; nil outside batchWrites; guarded by writeMu
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

// batchWrites calls write and sends all bytes that write produces in one system call. If each part
// were sent separately, each part would wake the client.
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

// limitedListener is a listener that passes its connections to a connLimit.
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

// admit adds a new connection. While unidentifiedConns is full of connections that are younger than
// unidentifiedGrace, admit waits.
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

// remove removes a connection from its list. The caller holds mu.
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

// identify records the visitor of a connection. It returns an error if the visitor has too many connections.
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
		return nil // closed, or already identified by an earlier request, possibly of another visitor behind a proxy
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

// oldestOfLargest returns the oldest connection of the visitor with the most connections. The caller holds
// mu.
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

// connKey is the context key under which a request's context stores the connection.
type connKey struct{}

// withConn adds a connection to the context of its requests.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secured.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// connOf returns the connection from a request's context.
func connOf(ctx context.Context) *pageConn {
	c, _ := ctx.Value(connKey{}).(*pageConn) // all connections of the server have this type
	return c
}
