package control

import (
	"context"
	"runtime"
	"slices"
	"time"
)

// This file limits the requests and bytes that one user may have in progress, and lets requests
// wait for room.
//
// When room is freed, the requests that wait for it get it in the order of their arrival, and
// only requests that got room are woken. Waking every request to try again would cost the most when
// a user floods the service. Each finished request would wake hundreds of goroutines, which would
// compete with other users' requests for the processors and the lock.

// maxRoomWait is how long a request waits for room in its user's share.
const maxRoomWait = 5 * time.Second

// roomHangUpInterval is the interval at which the server checks whether clients whose requests wait
// for room are still connected.
const roomHangUpInterval = 500 * time.Millisecond

// roomKind is a kind of resource with a limit for each user.
type roomKind int

const (
	requestRoom roomKind = iota // number of requests, which is also limited for each connection
	listRoom                    // number of requests that list or change many jobs
	byteRoom                    // number of bytes of request lines that the server is reading
	roomKinds
)

// roomRequest asks for room in a user's share on behalf of one of the user's connections.
type roomRequest struct {
	conn         *connShare
	kind         roomKind
	bytes        int64         // for byteRoom: the number of bytes by which the line's buffer grows
	lineComplete bool          // for byteRoom: all of the request line has been read
	granted      chan struct{} // closed once the request has its room; nil until the request has to wait
}

// takeLocked takes the room if there is enough, and reports whether it did.
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
		// Only one of a user's lines at a time may grow beyond its connection's connBytes.
		// Otherwise two lines could each hold half of the room and wait forever for the rest.
		more := max(0, c.bytes+r.bytes-connBytes) - max(0, c.bytes-connBytes)
		switch {
		case more == 0:
		case !c.s.unlimitedBytes && u.bytes+more > userBytes, !r.lineComplete && u.growingConn != nil && u.growingConn != c:
			return false
		case !r.lineComplete:
			u.growingConn = c
		}
		c.addBytesLocked(r.bytes)
	}
	return true
}

// grantRoomLocked gives the free room of one kind to the user's waiting requests, in the order of
// their arrival.
func (s *UserLimits) grantRoomLocked(u *userShare, kind roomKind) {
	u.roomRequests[kind] = slices.DeleteFunc(u.roomRequests[kind], func(r *roomRequest) bool {
		granted := r.takeLocked()
		if granted {
			close(r.granted)
		}
		return granted
	})
}

// awaitRoom takes room, waiting for it for at most maxRoomWait. It reports whether it got the room.
func (c *connShare) awaitRoom(ctx context.Context, wanted roomRequest) bool {
	c.s.mu.Lock()
	if wanted.takeLocked() {
		c.s.mu.Unlock()
		return true
	}
	r := new(wanted)
	r.granted = make(chan struct{})
	c.user.roomRequests[r.kind] = append(c.user.roomRequests[r.kind], r)
	if r.kind != listRoom {
		c.s.scheduleHangUpCheckLocked()
	}
	c.s.mu.Unlock()
	timer := time.NewTimer(maxRoomWait)
	defer timer.Stop()
	select {
	case <-r.granted:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return c.s.withdraw(r)
}

// withdraw stops a request from waiting. It reports whether the request already had its room.
func (s *UserLimits) withdraw(r *roomRequest) (granted bool) {
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

// scheduleHangUpCheckLocked schedules a call of checkHangUps after roomHangUpInterval, unless one
// is already scheduled or running.
func (s *UserLimits) scheduleHangUpCheckLocked() {
	if !s.hangUpCheckScheduled {
		s.hangUpCheckScheduled = true
		time.AfterFunc(roomHangUpInterval, s.checkHangUps)
	}
}

// checkHangUps checks whether the clients whose connections wait for room are still connected. The
// server does not read such a connection, so nothing else would notice that its client has hung up.
// After each client that has gone, checkHangUps lets other goroutines run. A user may close
// hundreds of connections together, and ending them all would delay everyone else's requests.
func (s *UserLimits) checkHangUps() {
	s.mu.Lock()
	waiting := s.waitForRoomLocked()
	s.mu.Unlock()
	for _, c := range waiting {
		if c.cancelIfHungUp() {
			runtime.Gosched()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hangUpCheckScheduled = false; len(s.waitForRoomLocked()) > 0 {
		s.scheduleHangUpCheckLocked()
	}
}

// waitForRoomLocked returns the connections that the server does not read because they wait for room.
func (s *UserLimits) waitForRoomLocked() (conns []*connShare) {
	for _, u := range s.users {
		for kind, requests := range u.roomRequests {
			for _, r := range requests {
				if roomKind(kind) != listRoom { // the server still reads a connection that waits for a list
					conns = append(conns, r.conn)
				}
			}
		}
	}
	return conns
}
