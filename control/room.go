package control

import (
	"context"
	"runtime"
	"slices"
	"time"
)

// This file bounds what one user has under way, and lets requests wait for room.
//
// Room that is given back goes to the requests that wait for it, in the order of their arrival, and only those are
// woken. Waking all of them to try for themselves would cost the most when a user floods the service: each end of a
// request would wake hundreds of goroutines, which keep the processors and the lock from the requests of other users.

// roomWait is how long a request waits for room in its user's share.
const roomWait = 5 * time.Second

// roomLook is the time between checks, while a request waits, whether its client is still connected.
const roomLook = 500 * time.Millisecond

// roomKind is something of which a user may have a limited amount.
type roomKind int

const (
	requestRoom roomKind = iota // requests, also bounded for each connection
	listRoom                    // lists and verbs on many jobs
	byteRoom                    // bytes of lines that are being read
	roomKinds
)

// roomRequest asks for room in the share of a connection's user.
type roomRequest struct {
	conn    *connShare
	kind    roomKind
	bytes   int64         // for byteRoom: by how much the line grows
	whole   bool          // for byteRoom: the line is complete
	granted chan struct{} // closed when the request gets its room; nil until it has to wait
}

// takeLocked takes the room if there is enough, and reports whether there was.
func (r *roomRequest) takeLocked() bool {
	c, u := r.conn, r.conn.user
	switch r.kind {
	case requestRoom:
		if c.requests >= connRequests || u.requests >= userRequests {
			return false
		}
		c.requests++
		u.requests++
	case listRoom:
		if u.lists >= userLists {
			return false
		}
		u.lists++
	case byteRoom:
		// Only one line of a user at a time grows beyond what its connection has free: two lines that had half of the room
		// each would wait for each other.
		more := max(0, c.bytes+r.bytes-connBytes) - max(0, c.bytes-connBytes)
		switch {
		case more == 0:
		case !c.s.unbound && u.bytes+more > userBytes, !r.whole && u.growing != nil && u.growing != c:
			return false
		case !r.whole:
			u.growing = c
		}
		c.add(r.bytes)
	}
	return true
}

// grantRoomLocked gives the free room of a kind to the user's requests that wait for it, in the order of their arrival.
func (s *Shares) grantRoomLocked(u *share, kind roomKind) {
	u.roomRequests[kind] = slices.DeleteFunc(u.roomRequests[kind], func(r *roomRequest) bool {
		granted := r.takeLocked()
		if granted {
			close(r.granted)
		}
		return granted
	})
}

// await takes room, and waits for it for up to roomWait. It reports whether it got the room.
func (c *connShare) await(ctx context.Context, wanted roomRequest) bool {
	c.s.mu.Lock()
	if wanted.takeLocked() {
		c.s.mu.Unlock()
		return true
	}
	r := new(wanted)
	r.granted = make(chan struct{})
	c.user.roomRequests[r.kind] = append(c.user.roomRequests[r.kind], r)
	if r.kind != listRoom {
		c.s.lookSoonLocked()
	}
	c.s.mu.Unlock()
	late := time.NewTimer(roomWait)
	defer late.Stop()
	select {
	case <-r.granted:
		return true
	case <-late.C:
	case <-ctx.Done():
	}
	return c.s.withdraw(r)
}

// withdraw ends the wait of a request. It reports whether the request has got its room by then.
func (s *Shares) withdraw(r *roomRequest) (granted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-r.granted:
		return true
	default:
	}
	waiting := &r.conn.user.roomRequests[r.kind]
	*waiting = slices.DeleteFunc(*waiting, func(o *roomRequest) bool { return o == r })
	return false
}

// lookSoonLocked has look called after roomLook.
func (s *Shares) lookSoonLocked() {
	if !s.looking {
		s.looking = true
		time.AfterFunc(roomLook, s.look)
	}
}

// look checks whether the clients whose connections wait for room are still there. Such a connection is not read, so
// nothing else would notice that its client has hung up. Between two clients that have gone it lets other goroutines
// run: a user may leave hundreds of connections together, whose ends would keep the processors from everyone else's
// requests.
func (s *Shares) look() {
	s.mu.Lock()
	waiting := s.waitForRoomLocked()
	s.mu.Unlock()
	for _, c := range waiting {
		if c.endIfGone() {
			runtime.Gosched()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.looking = false; len(s.waitForRoomLocked()) > 0 {
		s.lookSoonLocked()
	}
}

// waitForRoomLocked returns the connections that are not read because they wait for room.
func (s *Shares) waitForRoomLocked() (conns []*connShare) {
	for _, u := range s.users {
		for kind, requests := range u.roomRequests {
			for _, r := range requests {
				if roomKind(kind) != listRoom { // its connection is still read
					conns = append(conns, r.conn)
				}
			}
		}
	}
	return conns
}
