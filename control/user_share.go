package control

import (
	"context"
	"sync"

	"github.com/queuectl/queuectl/queue"
)

// MaxStreams is the maximum number of concurrent streams of one user.
const MaxStreams = 64

// Limits for what one user may have in progress, over all connections.
const (
	userRequests = 256     // maximum number of requests in progress
	connRequests = 64      // maximum number of requests in progress on one connection
	userLists    = 4       // maximum number of requests in progress that list or change many jobs
	userBytes    = MaxLine // maximum size of request lines and answers, without connBytes for each connection
	// connBytes is the number of bytes of each connection that do not count towards userBytes.
	connBytes = 16 << 10
)

// UserLimits divides the service among its users. It limits what each user may have in progress, and
// grants the slots for heavy work round robin. The zero UserLimits is ready for use. Its methods are
// safe for concurrent use.
type UserLimits struct {
	mu                   sync.Mutex
	users                map[int]*userShare // by uid; guarded by mu, like the fields below
	slots                slotTable
	hangUpCheckScheduled bool // checkHangUps is running, or a timer will call it
	unlimitedBytes       bool // bytes are not limited, because the server lets clients take any time to read
}

// userShare holds what one user has in progress. Shares.mu guards it.
type userShare struct {
	uid         int
	conns       int
	requests    int
	streams     int
	lists       int
	helpers     int
	bytes       int64      // sum over the user's connections of the bytes beyond connBytes
	growingConn *connShare // connection whose line has grown beyond connBytes; nil if none

	roomRequests [roomKinds][]*roomRequest // requests that wait for room, in the order of their arrival

	waiting     [classes][2][]*waiter // waiters for slots; index 1 holds those that need room for an answer
	slotsInUse  [classes]int          // number of slots that the user holds
	answerSlots int                   // slots in use by waiters that need room for an answer
}

// connShare holds what one connection uses of its user's share.
type connShare struct {
	s    *UserLimits
	user *userShare
	// cancelIfHungUp is called every roomHangUpInterval while the connection waits for room. If the
	// client has hung up, it cancels the connection's requests and returns true.
	cancelIfHungUp func() bool

	bytes    int64 // guarded by UserLimits.mu, like requests
	requests int
}

// setUnlimitedBytes sets whether the number of bytes is unlimited.
func (s *UserLimits) setUnlimitedBytes(unlimited bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlimitedBytes = unlimited
}

// shareLocked returns the share of a user, and creates it if there is none.
func (s *UserLimits) shareLocked(uid int) *userShare {
	u := s.users[uid]
	if u == nil {
		if s.users == nil {
			s.users = map[int]*userShare{}
		}
		u = &userShare{uid: uid}
		s.users[uid] = u
	}
	return u
}

// forgetIfIdleLocked deletes a share that nothing uses.
func (s *UserLimits) forgetIfIdleLocked(u *userShare) {
	if u.conns == 0 && u.helpers == 0 && u.slotsInUse == [classes]int{} && !u.hasWaiters() {
		delete(s.users, u.uid)
	}
}

// connect adds a connection to the share of its user.
func (s *UserLimits) connect(uid int, cancelIfHungUp func() bool) *connShare {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.shareLocked(uid)
	u.conns++
	return &connShare{s: s, user: u, cancelIfHungUp: cancelIfHungUp}
}

// close removes the connection from its user's share, and frees what it used.
func (c *connShare) close() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.addBytesLocked(-c.bytes)
	c.stopGrowingLocked()
	c.user.conns--
	c.s.forgetIfIdleLocked(c.user)
}

// addBytesLocked adds n to the bytes of the connection. The first connBytes do not count for the
// user.
func (c *connShare) addBytesLocked(n int64) {
	before := max(0, c.bytes-connBytes)
	c.bytes += n
	c.user.bytes += max(0, c.bytes-connBytes) - before
	if n < 0 {
		c.s.grantRoomLocked(c.user, byteRoom)
		if before > 0 { // a waiter may have room now
			c.s.dispatchLocked()
		}
	}
}

// growLine waits for room for n bytes of a line. completeLine is false if the line may still grow.
func (c *connShare) growLine(ctx context.Context, n int64, completeLine bool) error {
	if c.awaitRoom(ctx, roomRequest{conn: c, kind: byteRoom, bytes: n, lineComplete: completeLine}) {
		return nil
	}
	return queue.Errorf(queue.CodeUnavailable, "your requests and answers in progress take %d bytes, the maximum per "+
		"user; try again when your other commands have received their answers, or send less at a time", userBytes)
}

// lineComplete records that the connection's line has been read completely.
func (c *connShare) lineComplete() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.stopGrowingLocked()
}

// stopGrowingLocked lets another line of the user grow.
func (c *connShare) stopGrowingLocked() {
	if c.user.growingConn == c {
		c.user.growingConn = nil
		c.s.grantRoomLocked(c.user, byteRoom)
	}
}

// charge adds n bytes even if that exceeds the limit. A negative n frees them.
func (c *connShare) charge(n int) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.addBytesLocked(int64(n))
}

// beginRequest waits for room for a request. The caller must free it with endRequest.
func (c *connShare) beginRequest(ctx context.Context) error {
	if c.awaitRoom(ctx, roomRequest{conn: c, kind: requestRoom}) {
		return nil
	}
	return queue.Errorf(queue.CodeUnavailable, "too many requests are in progress (limits: %d per connection, %d per "+
		"user); wait for an answer before you send more", connRequests, userRequests)
}

// endRequest frees the bytes of a request and, if it had begun, its room.
func (c *connShare) endRequest(begun bool, bytes int) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if begun {
		c.requests--
		c.user.requests--
		c.s.grantRoomLocked(c.user, requestRoom)
	}
	c.addBytesLocked(int64(-bytes))
}

// openStream takes room for a stream. The function end frees the room. openStream does not wait for
// room, because streams may last long.
func (c *connShare) openStream() (end func(), err error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.user.streams >= MaxStreams {
		return nil, queue.Errorf(queue.CodeUnavailable,
			"you have %d open streams (such as wait, logs and events), the maximum per user; close one", MaxStreams)
	}
	c.user.streams++
	return func() {
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		c.user.streams--
	}, nil
}

// beginListRequest waits for room for a request about many jobs. The function end frees the room.
func (c *connShare) beginListRequest(ctx context.Context) (end func(), err error) {
	if !c.awaitRoom(ctx, roomRequest{conn: c, kind: listRoom}) {
		return nil, queue.Errorf(queue.CodeUnavailable,
			"%d of your requests that list or change many jobs are in progress, the maximum per user; wait until one "+
				"of them is answered", userLists)
	}
	return func() {
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		c.user.lists--
		c.s.grantRoomLocked(c.user, listRoom)
	}, nil
}

// userHelpers is the maximum number of extra goroutines that process one user's requests, in
// addition to one for each request.
const userHelpers = 128

// Helper reserves one of the extra goroutines that a user may have. It does not wait, and reports
// whether one was free. The caller must call end to return it.
func (s *UserLimits) Helper(ctx context.Context) (end func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.shareLocked(PeerFrom(ctx).UID)
	if u.helpers >= userHelpers {
		return nil, false
	}
	u.helpers++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		u.helpers--
		s.forgetIfIdleLocked(u)
	}, true
}

// ChargeBytes adds n bytes to the user's share until the request of ctx ends.
func ChargeBytes(ctx context.Context, n int) {
	if t := activeRequestOf(ctx); t != nil {
		t.bytes += int64(n)
		t.conn.share.charge(n)
	}
}
