package dashboard

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control/fair"
	"github.com/queuectl/queuectl/queue"
)

// These constants limit the connections of the web page. See docs/decisions/0084.
const (
	maxUnidentifiedConns = 256 // maximum number of connections on which no request has shown the user yet
	// unidentifiedConnGracePeriod is how long a new connection stays open at least, before it may be closed to make room
	// for others. In this time, the server can read the first request. During a flood of connections, further connections
	// therefore wait in the kernel.
	unidentifiedConnGracePeriod = 100 * time.Millisecond
	// maximum number of connections on which a request has shown the user
	maxIdentifiedConns = 1024
	maxUserConns       = maxUserPageSubscribers + 40 // maximum number of identified connections of one user
)

// connLimiter limits the connections of the web page, so that no client can keep others out. A connection is
// unidentified until a request on it shows which user it belongs to. If there are too many unidentified
// connections, the oldest of them is closed. If there are too many identified connections, the oldest one of
// the user with the most connections is closed. The methods are safe for concurrent use.
type connLimiter struct {
	mu                    sync.Mutex
	unidentifiedConns     []*pageConn   // oldest first; guarded by mu
	identifiedConns       []*pageConn   // oldest first; guarded by mu
	userConnLimiter       *fair.Limiter // counts and limits the identified connections of each user
	unidentifiedSlotFreed chan struct{} // receives a value when a connection leaves unidentifiedConns
}

func newConnLimiter() *connLimiter {
	return &connLimiter{userConnLimiter: fair.NewLimiter(fair.Bound{MaxAmount: maxUserConns}),
		unidentifiedSlotFreed: make(chan struct{}, 1)}
}

// pageConn is a connection of the web page.
type pageConn struct {
	net.Conn
	limiter *connLimiter
	// containingList is the list of connLimiter that contains the connection. It is nil after the connection was closed.
	// containingList, acceptedAt and uid are guarded by limiter.mu.
	containingList *[]*pageConn
	acceptedAt     time.Time
	uid            int // user of the connection, if it is identified

	writeMu     sync.Mutex
	batchBuffer *bytes.Buffer // during batchWrites, collects the bytes to write; otherwise nil; guarded by writeMu
}

// Write implements net.Conn.
func (c *pageConn) Write(p []byte) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if c.batchBuffer != nil {
		return c.batchBuffer.Write(p)
	}
	return c.Conn.Write(p)
}

// batchWrites calls write, and sends everything that write writes to c with one system call. Several system calls would
// wake the client several times.
func (c *pageConn) batchWrites(write func() error) error {
	all := new(bytes.Buffer)
	c.writeMu.Lock()
	c.batchBuffer = all
	c.writeMu.Unlock()
	err := write()
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	c.batchBuffer = nil
	if all.Len() > 0 {
		_, failed := c.Conn.Write(all.Bytes())
		err = errors.Join(err, failed)
	}
	return err
}

// limitedListener is a listener whose connections are limited by a connLimiter.
type limitedListener struct {
	net.Listener
	limiter *connLimiter
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	admitted := &pageConn{Conn: c, limiter: l.limiter}
	l.limiter.admitConn(admitted)
	return admitted, nil
}

// admitConn adds a new connection. If there are already maxUnidentifiedConns unidentified connections, admit waits
// until the oldest of them is older than unidentifiedConnGracePeriod, and closes that one.
func (l *connLimiter) admitConn(c *pageConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.unidentifiedConns) >= maxUnidentifiedConns {
		oldest := l.unidentifiedConns[0]
		wait := unidentifiedConnGracePeriod - time.Since(oldest.acceptedAt)
		if wait <= 0 {
			l.removeConnLocked(oldest)
			oldest.Conn.Close()
			break
		}
		l.mu.Unlock()
		select {
		case <-time.After(wait):
		case <-l.unidentifiedSlotFreed:
		}
		l.mu.Lock()
	}
	c.acceptedAt = time.Now()
	l.addConnLocked(c, &l.unidentifiedConns)
}

// addConnLocked adds a connection to a list. The caller holds mu.
func (l *connLimiter) addConnLocked(c *pageConn, list *[]*pageConn) {
	c.containingList, *list = list, append(*list, c)
}

// removeConnLocked removes a connection from the list that contains it, if there is such a list. The caller holds mu.
func (l *connLimiter) removeConnLocked(c *pageConn) {
	list := c.containingList
	if list == nil {
		return
	}
	*list = slices.DeleteFunc(*list, func(other *pageConn) bool { return other == c })
	if list == &l.unidentifiedConns {
		queue.TrySend(l.unidentifiedSlotFreed, struct{}{})
	} else {
		l.userConnLimiter.Release(fair.Request{UserID: c.uid})
	}
	c.containingList = nil
}

// Close implements net.Conn.
func (c *pageConn) Close() error {
	c.limiter.mu.Lock()
	c.limiter.removeConnLocked(c)
	c.limiter.mu.Unlock()
	return c.Conn.Close()
}

// setConnUser records which user a connection belongs to. It returns an error if the user has too many
// connections.
func (l *connLimiter) setConnUser(c *pageConn, uid int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.containingList != &l.unidentifiedConns { // the connection is identified or closed
		// Behind a proxy, that earlier request may have been a request of another user. The connection then still counts for
		// the first user.
		return nil
	}
	if !l.userConnLimiter.TryAcquire(fair.Request{UserID: uid}) {
		return queue.Errorf(queue.CodeUnavailable, "you have %d connections to the page, the limit for one "+
			"user; close some windows", maxUserConns)
	}
	if len(l.identifiedConns) >= maxIdentifiedConns {
		oldest := l.oldestOfBusiestUserLocked()
		l.removeConnLocked(oldest)
		oldest.Conn.Close()
	}
	l.removeConnLocked(c)
	c.uid = uid
	l.addConnLocked(c, &l.identifiedConns)
	return nil
}

// oldestOfBusiestUserLocked returns the oldest connection of the user with the most connections. The caller holds mu.
func (l *connLimiter) oldestOfBusiestUserLocked() (oldest *pageConn) {
	most := int64(0)
	for _, c := range l.identifiedConns {
		if n := l.userConnLimiter.InUse(c.uid, 0); n > most {
			oldest, most = c, n
		}
	}
	return oldest
}

// connKey is the key of the connection in the context of a request.
type connKey struct{}

// withConn returns a context for the requests on a connection. connFromContext gets the connection from this context.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secured.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// connFromContext returns the connection from the context of a request.
func connFromContext(ctx context.Context) *pageConn {
	c, _ := ctx.Value(connKey{}).(*pageConn) // every connection of the server has this type
	return c
}
