package control

import (
	"context"
	"sync"

	"github.com/queuectl/queuectl/queue"
)

// MaxStreams is how many streams one user may have at once.
const MaxStreams = 64

// What one user may have under way at once, over all connections.
const (
	userRequests = 256     // requests
	connRequests = 64      // of these, on one connection
	userLists    = 4       // of these, lists and verbs on many jobs
	userBytes    = MaxLine // bytes of lines, requests and answers, beside those that each connection has free
	connBytes    = 16 << 10
)

// Shares divides the service among its users: it bounds what each user has under way, and
// gives users in turn the places for heavy work. The zero Shares is ready. Its methods may
// be called at once.
type Shares struct {
	mu      sync.Mutex
	users   map[int]*share // by uid; guarded by mu, as is all below
	places  places
	looking bool // look is running, or a timer is set to call it
	unbound bool // bytes have no limit: there is one user, who may take any time to read
}

// share is what one user has under way. Shares.mu guards it.
type share struct {
	uid      int
	conns    int
	requests int
	streams  int
	lists    int
	helpers  int
	bytes    int64      // sum over the user's connections of the bytes beyond connBytes
	growing  *connShare // the connection whose line has grown beyond connBytes; nil if none has

	roomRequests [roomKinds][]*roomRequest // requests that wait for room, in the order of their arrival

	waiting   [classes][2][]*waiter // for a place; the second ones take bytes
	taken     [classes]int          // places
	answering int                   // of these, by those who take bytes
}

// connShare is what one connection has under way of its user's share.
type connShare struct {
	s    *Shares
	user *share
	// endIfGone is called every roomLook while the connection waits for room. If the client has hung up, it cancels
	// the connection's requests and returns true.
	endIfGone func() bool

	bytes    int64 // guarded by Shares.mu, as is:
	requests int
}

// setUnbound says whether bytes are counted at all.
func (s *Shares) setUnbound(unbound bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unbound = unbound
}

// of is the share of a user. The caller holds mu.
func (s *Shares) of(uid int) *share {
	u := s.users[uid]
	if u == nil {
		if s.users == nil {
			s.users = map[int]*share{}
		}
		u = &share{uid: uid}
		s.users[uid] = u
	}
	return u
}

// forget drops a share that holds nothing. The caller holds mu.
func (s *Shares) forget(u *share) {
	if u.conns == 0 && u.helpers == 0 && u.taken == [classes]int{} && !u.waits() {
		delete(s.users, u.uid)
	}
}

// connect begins a connection of a user.
func (s *Shares) connect(uid int, endIfGone func() bool) *connShare {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.of(uid)
	u.conns++
	return &connShare{s: s, user: u, endIfGone: endIfGone}
}

// close ends a connection, with what it has under way.
func (c *connShare) close() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.add(-c.bytes)
	c.stopGrowing()
	c.user.conns--
	c.s.forget(c.user)
}

// add counts n bytes of the connection. Its first connBytes do not count for the user. The
// caller holds mu.
func (c *connShare) add(n int64) {
	before := max(0, c.bytes-connBytes)
	c.bytes += n
	c.user.bytes += max(0, c.bytes-connBytes) - before
	if n < 0 {
		c.s.grantRoomLocked(c.user, byteRoom)
		if before > 0 { // a waiter may have room now
			c.s.dispatch()
		}
	}
}

// room takes n bytes for a line. whole is false if the line may still grow.
func (c *connShare) room(ctx context.Context, n int64, whole bool) error {
	if c.await(ctx, roomRequest{conn: c, kind: byteRoom, bytes: n, whole: whole}) {
		return nil
	}
	return queue.Errorf(queue.CodeUnavailable, "your requests and answers in progress take %d bytes, the maximum per user; read the answers, and send less at a time", userBytes)
}

// lineEnded says that the connection's line grows no more.
func (c *connShare) lineEnded() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.stopGrowing()
}

// stopGrowing lets another line grow. The caller holds mu.
func (c *connShare) stopGrowing() {
	if c.user.growing == c {
		c.user.growing = nil
		c.s.grantRoomLocked(c.user, byteRoom)
	}
}

// charge counts n bytes whether there is room for them or not; a negative n gives them back.
func (c *connShare) charge(n int) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.add(int64(n))
}

// begin takes room for a request, which end gives back.
func (c *connShare) begin(ctx context.Context) error {
	if c.await(ctx, roomRequest{conn: c, kind: requestRoom}) {
		return nil
	}
	return queue.Errorf(queue.CodeUnavailable, "too many requests are in progress (limits: %d per connection, %d per user); wait for an answer before you send more", connRequests, userRequests)
}

// end gives back the bytes of a request and, if it had begun, its room.
func (c *connShare) end(begun bool, bytes int) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if begun {
		c.requests--
		c.user.requests--
		c.s.grantRoomLocked(c.user, requestRoom)
	}
	c.add(int64(-bytes))
}

// stream takes room for a stream, which end gives back. It does not wait: streams last.
func (c *connShare) stream() (end func(), err error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.user.streams >= MaxStreams {
		return nil, queue.Errorf(queue.CodeUnavailable, "you have %d open streams (such as wait, logs and events), the maximum per user; close one", MaxStreams)
	}
	c.user.streams++
	return func() {
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		c.user.streams--
	}, nil
}

// list takes room for a request about many jobs, which end gives back.
func (c *connShare) list(ctx context.Context) (end func(), err error) {
	if !c.await(ctx, roomRequest{conn: c, kind: listRoom}) {
		return nil, queue.Errorf(queue.CodeUnavailable, "%d of your requests that list or change many jobs are in progress, the maximum per user; wait until one of them is answered", userLists)
	}
	return func() {
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		c.user.lists--
		c.s.grantRoomLocked(c.user, listRoom)
	}, nil
}

// userHelpers is how many goroutines may carry out one user's verbs beside those of the
// requests themselves.
const userHelpers = 128

// Helper reserves a goroutine of those that a user may have beside the requests'
// own, without waiting. end gives it back.
func (s *Shares) Helper(ctx context.Context) (end func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.of(PeerFrom(ctx).UID)
	if u.helpers >= userHelpers {
		return nil, false
	}
	u.helpers++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		u.helpers--
		s.forget(u)
	}, true
}

// Charge counts n bytes that a request needs until it ends in its user's share.
func Charge(ctx context.Context, n int) {
	if t := taskOf(ctx); t != nil {
		t.bytes += int64(n)
		t.conn.room.charge(n)
	}
}
