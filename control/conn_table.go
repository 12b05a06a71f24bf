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
	connsByUID map[int]map[*serverConn]bool // by uid; contains only users with connections; guarded by mu
	// connsWithoutAccess contains the connections whose users had no access when they connected, at most
	// maxConnsWithoutAccess; guarded by mu.
	connsWithoutAccess map[*serverConn]bool
}

// errTooManyConnsWithoutAccess rejects a connection of a user without access. The limit for all connections is reached,
// or the limit for such connections is reached and the user has a fair share of them.
var errTooManyConnsWithoutAccess = errors.New("too many connections from users without access")

// addConn adds a connection to the table. If a limit is reached, addConn removes another connection to make room, or
// returns an error if it may remove none. It removes only idle connections, except those of users without access; see
// evictableConnWithoutAccessLocked. The caller must close the removed connections, which addConn returns also with an
// error.
func (t *connTable) addConn(c *serverConn, limits ConnectionLimits) (evictedConns []*serverConn, err error) {
	limit, userLimit := limits.MaxConnections()
	if !c.peer.Right.Covers(RightAdmin) {
		limit -= reservedAdminConns
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	evict := func(o *serverConn) bool { // removes a connection from the table; returns false if o is nil
		if o == nil {
			return false
		}
		o.mu.Lock()
		o.evicted = true
		o.mu.Unlock()
		t.removeConnLocked(o)
		evictedConns = append(evictedConns, o)
		return true
	}
	full := func() bool { return t.openCount.Load() >= int64(limit) }
	own := t.connsByUID[c.peer.UID]
	if own == nil {
		own = map[*serverConn]bool{}
	}
	switch {
	case c.lacksAccess() && full():
		return nil, errTooManyConnsWithoutAccess
	case len(own) >= userLimit && !evict(idlestConn(maps.Keys(own))):
		return nil, queue.Errorf(queue.CodeUnavailable,
			"you have %d open connections to the service, all in use; close one, or raise the setting max_connections_per_user",
			len(own))
	case c.lacksAccess() && len(t.connsWithoutAccess) >= maxConnsWithoutAccess &&
		!evict(t.evictableConnWithoutAccessLocked(c.peer.UID)):
		return evictedConns, errTooManyConnsWithoutAccess
	case full() && !evict(idlestConn(t.allConnsLocked())):
		return evictedConns, queue.Errorf(queue.CodeUnavailable,
			"the service has %d open connections, all in use; try again later, or raise the setting max_connections",
			t.openCount.Load())
	}
	if t.connsByUID == nil {
		t.connsByUID = map[int]map[*serverConn]bool{}
	}
	t.connsByUID[c.peer.UID] = own
	own[c] = true
	t.openCount.Add(1)
	if c.lacksAccess() {
		if t.connsWithoutAccess == nil {
			t.connsWithoutAccess = map[*serverConn]bool{}
		}
		t.connsWithoutAccess[c] = true
	}
	return evictedConns, nil
}

// idlestConn returns the candidate that has been idle longest, or nil if no candidate is idle.
func idlestConn(candidates iter.Seq[*serverConn]) (longestIdle *serverConn) {
	var longestIdleSince time.Time
	for o := range candidates {
		if at, idle := o.idleSince(); idle && (longestIdle == nil || at.Before(longestIdleSince)) {
			longestIdle, longestIdleSince = o, at
		}
	}
	return longestIdle
}

// evictableConnWithoutAccessLocked returns the connection to evict for a connection of a user without access. If
// another user without access has at least two connections more, it returns the oldest connection of the user with the
// most connections, even if it has a request in progress. Otherwise it returns nil. So no user can keep the others from
// sending whoami.
func (t *connTable) evictableConnWithoutAccessLocked(uid int) (evictable *serverConn) {
	counts := map[int]int{}
	for c := range t.connsWithoutAccess {
		counts[c.peer.UID]++
	}
	var evictableSince time.Time
	for c := range t.connsWithoutAccess {
		n := counts[c.peer.UID]
		if n < counts[uid]+2 || evictable != nil && n < counts[evictable.peer.UID] {
			continue
		}
		c.mu.Lock()
		since := c.activeRequestsChangedAt
		c.mu.Unlock()
		if evictable == nil || n > counts[evictable.peer.UID] || since.Before(evictableSince) {
			evictable, evictableSince = c, since
		}
	}
	return evictable
}

// removeConn removes a connection from the table. It does nothing if the connection was evicted.
func (t *connTable) removeConn(c *serverConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeConnLocked(c)
}

func (t *connTable) removeConnLocked(c *serverConn) {
	own := t.connsByUID[c.peer.UID]
	if !own[c] {
		return
	}
	delete(own, c)
	if len(own) == 0 {
		delete(t.connsByUID, c.peer.UID)
	}
	t.openCount.Add(-1)
	delete(t.connsWithoutAccess, c)
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

// forEachConn calls f for every connection while it holds mu. f must not use the table.
func (t *connTable) forEachConn(f func(*serverConn)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.allConnsLocked() {
		f(c)
	}
}
