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

// connTable lists the connections that a server serves. No code blocks while it holds the lock. Below the limit for
// all connections, the method add scans only one user's connections. So a user who connects very often does not
// delay other users. The zero connTable is empty.
type connTable struct {
	openCount atomic.Int64 // number of connections

	mu     sync.Mutex
	byUser map[int]map[*serverConn]bool // by uid; contains only users with connections; guarded by mu
	// connsWithoutAccess is the number of connections whose users had no access when they connected. It
	// is guarded by mu.
	connsWithoutAccess int
}

// errTooManyWithoutAccess rejects a connection of a user without access. It means that the limit for such
// connections, or for all connections, is reached.
var errTooManyWithoutAccess = errors.New("too many connections from users without access")

// add adds a connection if the limits allow it, and may remove idle ones to make room. The caller closes the
// removed connections, which are returned.
func (t *connTable) add(c *serverConn, limits Limits) (evicted []*serverConn, err error) {
	limit, userLimit := limits.MaxConnections()
	if !c.peer.Right.Covers(RightAdmin) {
		limit -= reservedAdminConns
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	evict := func(candidates iter.Seq[*serverConn]) bool {
		o := t.evictLocked(candidates)
		if o != nil {
			evicted = append(evicted, o)
		}
		return o != nil
	}
	full := func() bool { return t.openCount.Load() >= int64(limit) }
	own := t.byUser[c.peer.UID]
	if own == nil {
		own = map[*serverConn]bool{}
	}
	switch {
	case c.lacksAccess() && (t.connsWithoutAccess >= maxConnsWithoutAccess || full()):
		return nil, errTooManyWithoutAccess
	case len(own) >= userLimit && !evict(maps.Keys(own)):
		return nil, queue.Errorf(queue.CodeUnavailable,
			"you have %d open connections to the service, all in use; close one, or raise the setting max_connections_per_user",
			len(own))
	case full() && !evict(t.allConnsLocked()):
		return evicted, queue.Errorf(queue.CodeUnavailable,
			"the service has %d open connections, all in use; try again later, or raise the setting max_connections",
			t.openCount.Load())
	}
	if t.byUser == nil {
		t.byUser = map[int]map[*serverConn]bool{}
	}
	t.byUser[c.peer.UID] = own
	own[c] = true
	t.adjustCountsLocked(c, 1)
	return evicted, nil
}

// evictLocked removes one of the given connections from the table and returns it: the one that has been idle
// longest. It returns nil if none is idle. The given connections are those of one user, or all in the table.
func (t *connTable) evictLocked(candidates iter.Seq[*serverConn]) *serverConn {
	var longestIdle *serverConn
	var longestIdleSince time.Time
	for o := range candidates {
		if at, idle := o.idleSince(); idle && (longestIdle == nil || at.Before(longestIdleSince)) {
			longestIdle, longestIdleSince = o, at
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

// remove removes a connection from the table. It does nothing if the connection was evicted.
func (t *connTable) remove(c *serverConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(c)
}

func (t *connTable) removeLocked(c *serverConn) {
	own := t.byUser[c.peer.UID]
	if !own[c] {
		return
	}
	delete(own, c)
	if len(own) == 0 {
		delete(t.byUser, c.peer.UID)
	}
	t.adjustCountsLocked(c, -1)
}

// adjustCountsLocked adds delta to the connection counts that include c.
func (t *connTable) adjustCountsLocked(c *serverConn, delta int) {
	t.openCount.Add(int64(delta))
	if c.lacksAccess() {
		t.connsWithoutAccess += delta
	}
}

func (t *connTable) allConnsLocked() iter.Seq[*serverConn] {
	return func(yield func(*serverConn) bool) {
		for _, own := range t.byUser {
			for c := range own {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// forEach calls the function f for every connection. The function must not use the table.
func (t *connTable) forEach(f func(*serverConn)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.allConnsLocked() {
		f(c)
	}
}
