package control

import (
	"errors"
	"iter"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// connTable lists the connections that a server serves. Code that holds its lock never blocks, and
// scans only one user's connections unless the total limit is reached. A user who connects over and
// over therefore does not delay other users. The zero connTable is empty.
type connTable struct {
	openCount atomic.Int64 // number of connections

	mu     sync.Mutex
	byUser map[int]*userConns // by uid; guarded by mu
	// withoutAccess is the number of connections whose users had no access when they connected. It
	// is guarded by mu.
	withoutAccess int
}

// userConns holds one user's connections. It has at least one.
type userConns struct {
	idle  atomic.Int64         // number of connections without a request
	conns map[*serverConn]bool // guarded by the table's mu
}

// errNoAccess rejects a connection of a user without access because the limit for such connections,
// or for all connections, is reached.
var errNoAccess = errors.New("too many connections from users without access")

// add adds a connection if the limits allow it, and may evict idle ones to make room. The evicted
// connections are removed from the table, and the caller closes them.
func (t *connTable) add(c *serverConn, limits Limits) (evicted []*serverConn, err error) {
	limit, share := limits.Connections()
	if !c.peer.Right.Covers(Admin) {
		limit -= reservedForAdmins
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	evict := func(among iter.Seq[*serverConn]) bool {
		o := t.evictLocked(among)
		if o != nil {
			evicted = append(evicted, o)
		}
		return o != nil
	}
	full := func() bool { return t.openCount.Load() >= int64(limit) }
	own := t.byUser[c.peer.UID]
	if own == nil {
		own = &userConns{conns: map[*serverConn]bool{}}
	}
	switch {
	case c.lacksAccess() && (t.withoutAccess >= maxWithoutAccess || full()):
		return nil, errNoAccess
	case len(own.conns) >= share && (own.idle.Load() == 0 || !evict(maps.Keys(own.conns))):
		return nil, queue.Errorf(queue.CodeUnavailable,
			"you have %d open connections to the service, all in use; close one, or raise the setting max_connections_per_user",
			len(own.conns))
	case full() && !evict(t.allLocked()):
		return evicted, queue.Errorf(queue.CodeUnavailable,
			"the service has %d open connections, all in use; try again later, or raise the setting max_connections",
			t.openCount.Load())
	}
	if t.byUser == nil {
		t.byUser = map[int]*userConns{}
	}
	t.byUser[c.peer.UID] = own
	own.conns[c] = true
	c.setIdleCounter(&own.idle)
	t.countLocked(c, 1)
	return evicted, nil
}

// evictLocked removes the connection that has been idle longest and returns it. It returns nil if
// none is idle.
func (t *connTable) evictLocked(among iter.Seq[*serverConn]) *serverConn {
	var longestIdle *serverConn
	var since time.Time
	for o := range among {
		if at, idle := o.idleSince(); idle && (longestIdle == nil || at.Before(since)) {
			longestIdle, since = o, at
		}
	}
	if longestIdle != nil {
		longestIdle.mu.Lock()
		longestIdle.evicted = true
		longestIdle.mu.Unlock()
		t.removeLocked(longestIdle)
	}
	return longestIdle
}

// remove removes a connection, unless it was evicted.
func (t *connTable) remove(c *serverConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(c)
}

func (t *connTable) removeLocked(c *serverConn) {
	own := t.byUser[c.peer.UID]
	if own == nil || !own.conns[c] {
		return
	}
	c.setIdleCounter(nil)
	delete(own.conns, c)
	if len(own.conns) == 0 {
		delete(t.byUser, c.peer.UID)
	}
	t.countLocked(c, -1)
}

// countLocked adds n to the connection counts that include c.
func (t *connTable) countLocked(c *serverConn, n int) {
	t.openCount.Add(int64(n))
	if c.lacksAccess() {
		t.withoutAccess += n
	}
}

func (t *connTable) allLocked() iter.Seq[*serverConn] {
	return func(yield func(*serverConn) bool) {
		for _, own := range t.byUser {
			for c := range own.conns {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// each calls f for every connection. f must not use the table.
func (t *connTable) each(f func(*serverConn)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.allLocked() {
		f(c)
	}
}
