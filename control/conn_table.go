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

// connTable lists the connections that a server serves. A user who connects very often does not delay other users, for
// two reasons. No code blocks while it holds mu. Unless the limit for all connections is reached, add scans only the
// connections of the user who connects. The zero connTable is empty.
type connTable struct {
	openCount atomic.Int64 // number of connections

	mu         sync.Mutex
	connsByUID map[int]map[*serverConn]bool // connections by uid; contains only users with connections; guarded by mu
	// connsWithoutAccess is the number of connections whose users had no access when they connected; guarded by
	// mu.
	connsWithoutAccess int
}

// errTooManyConnsWithoutAccess rejects a connection of a user without access, because the limit for such connections or
// the limit for all connections is reached.
var errTooManyConnsWithoutAccess = errors.New("too many connections from users without access")

// add adds a connection to the table. If a limit is reached, add removes an idle connection to make room, or returns an
// error if no connection is idle. The caller must close the removed connections, which add returns.
func (t *connTable) add(c *serverConn, limits ConnectionLimits) (evictedConns []*serverConn, err error) {
	limit, userLimit := limits.MaxConnections()
	if !c.peer.Right.Covers(RightAdmin) {
		limit -= reservedAdminConns
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	evict := func(candidates iter.Seq[*serverConn]) bool {
		o := t.evictIdlestLocked(candidates)
		if o != nil {
			evictedConns = append(evictedConns, o)
		}
		return o != nil
	}
	full := func() bool { return t.openCount.Load() >= int64(limit) }
	own := t.connsByUID[c.peer.UID]
	if own == nil {
		own = map[*serverConn]bool{}
	}
	switch {
	case c.lacksAccess() && (t.connsWithoutAccess >= maxConnsWithoutAccess || full()):
		return nil, errTooManyConnsWithoutAccess
	case len(own) >= userLimit && !evict(maps.Keys(own)):
		return nil, queue.Errorf(queue.CodeUnavailable,
			"you have %d open connections to the service, all in use; close one, or raise the setting max_connections_per_user",
			len(own))
	case full() && !evict(t.allConnsLocked()):
		return evictedConns, queue.Errorf(queue.CodeUnavailable,
			"the service has %d open connections, all in use; try again later, or raise the setting max_connections",
			t.openCount.Load())
	}
	if t.connsByUID == nil {
		t.connsByUID = map[int]map[*serverConn]bool{}
	}
	t.connsByUID[c.peer.UID] = own
	own[c] = true
	t.adjustCountsLocked(c, 1)
	return evictedConns, nil
}

// evictIdlestLocked removes the candidate that has been idle longest from the table and returns it. It returns nil if
// no candidate is idle. candidates contains all connections in the table, or the connections of one user.
func (t *connTable) evictIdlestLocked(candidates iter.Seq[*serverConn]) *serverConn {
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
	own := t.connsByUID[c.peer.UID]
	if !own[c] {
		return
	}
	delete(own, c)
	if len(own) == 0 {
		delete(t.connsByUID, c.peer.UID)
	}
	t.adjustCountsLocked(c, -1)
}

// adjustCountsLocked adds delta to openCount and, if the peer of c lacks access, to connsWithoutAccess.
func (t *connTable) adjustCountsLocked(c *serverConn, delta int) {
	t.openCount.Add(int64(delta))
	if c.lacksAccess() {
		t.connsWithoutAccess += delta
	}
}

func (t *connTable) allConnsLocked() iter.Seq[*serverConn] {
	return func(yield func(*serverConn) bool) {
		for _, own := range t.connsByUID {
			for c := range own {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// forEach calls f for every connection while it holds mu. f must not use the table.
func (t *connTable) forEach(f func(*serverConn)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.allConnsLocked() {
		f(c)
	}
}
