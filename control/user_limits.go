package control

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/control/fair"
	"github.com/queuectl/queuectl/queue"
)

// MaxStreams is the maximum number of concurrent streams of one user.
const MaxStreams = 64

// Limits for what one user may have in progress, over all connections.
const (
	userRequests = 256     // maximum number of requests in progress
	connRequests = 64      // maximum number of requests in progress on one connection
	userLists    = 4       // maximum number of requests in progress that list or change many jobs
	userHelpers  = 128     // maximum number of extra goroutines, in addition to one for each request
	userBytes    = MaxLine // maximum size of request lines and answers, without connBytes for each connection
	// connBytes is the number of bytes of each connection that do not count towards userBytes.
	connBytes = 16 << 10
)

// maxRoomWait is how long a request waits until other requests of its user end.
const maxRoomWait = 5 * time.Second

// UserLimits divides the service among its users. It limits what each user may have in progress, and
// grants the slots for heavy work round robin. Its methods are safe for concurrent use.
// See docs/decisions/0071.
type UserLimits struct {
	requests, lists, streams, helpers *fair.Limiter
	connRequests                      *fair.Limiter // its users are connections

	bytes        *fair.Limiter // of request lines and answers in progress
	growingLines *fair.Limiter // lines longer than connBytes that may still grow
	slots        *fair.Limiter // for heavy work; see slots.go

	unlimitedBytes atomic.Bool  // bytes are not limited, because the server lets clients take any time to read
	lastConn       atomic.Int64 // number of the newest connection
	hangUps        hangUpWatch
}

// NewUserLimits returns the limits of a service that no user uses yet.
func NewUserLimits() *UserLimits {
	perUser := func(n int64) *fair.Limiter { return fair.New(fair.Bound{Max: n}) }
	return &UserLimits{requests: perUser(userRequests), lists: perUser(userLists), streams: perUser(MaxStreams),
		helpers: perUser(userHelpers), connRequests: perUser(connRequests), bytes: perUser(userBytes),
		growingLines: perUser(1), slots: fair.New(slotBounds()...)}
}

// connShare holds what one connection uses of its user's limits.
type connShare struct {
	s      *UserLimits
	uid    int
	number int // of the connection
	// cancelIfHungUp is called every roomHangUpInterval while the connection waits for room. If the
	// client has hung up, it cancels the connection's requests and returns true.
	cancelIfHungUp func() bool

	bytes   atomic.Int64
	growing bool // the connection's line may grow; only the goroutine that reads the connection uses it
}

// connect returns the share of a new connection of a user.
func (s *UserLimits) connect(uid int, cancelIfHungUp func() bool) *connShare {
	return &connShare{s: s, uid: uid, number: int(s.lastConn.Add(1)), cancelIfHungUp: cancelIfHungUp}
}

// close frees what the connection uses. Its requests must have ended.
func (c *connShare) close() {
	c.charge(-int(c.bytes.Load()))
	c.lineComplete()
}

// awaitRoom waits for room while the server does not read the connection. It reports whether the
// request got the room.
func (c *connShare) awaitRoom(ctx context.Context, l *fair.Limiter, r fair.Request) bool {
	if l.TryAcquire(r) {
		return true
	}
	c.s.hangUps.add(c)
	defer c.s.hangUps.remove(c)
	return l.Acquire(ctx, r) == nil
}

// userBytesFor adds n to the bytes of the connection. It returns by how much the bytes of the user
// change, since the first connBytes of each connection do not count. The caller must add this
// number to UserLimits.bytes.
func (c *connShare) userBytesFor(n int64) int64 {
	bytes := c.bytes.Add(n)
	return max(0, bytes-connBytes) - max(0, bytes-n-connBytes)
}

// charge adds n bytes even if that exceeds the limit. A negative n frees them.
func (c *connShare) charge(n int) {
	if more := c.userBytesFor(int64(n)); more != 0 {
		c.s.bytes.Add(fair.Request{User: c.uid, Amount: more})
		if more < 0 {
			c.s.slots.Dispatch() // an answer may have room now
		}
	}
}

// growLine waits for room for n bytes of a line. completeLine is false if the line may still grow.
// Only one of a user's lines at a time may grow beyond its connection's connBytes. Otherwise two
// lines could each hold half of the room and wait forever for the rest.
func (c *connShare) growLine(ctx context.Context, n int64, completeLine bool) error {
	more := c.userBytesFor(n)
	if more == 0 {
		return nil
	}
	deadline := time.Now().Add(maxRoomWait)
	if !completeLine && !c.growing {
		c.growing = c.awaitRoom(ctx, c.s.growingLines, fair.Request{User: c.uid, Deadline: deadline})
	}
	mayGrow, room := completeLine || c.growing, fair.Request{User: c.uid, Amount: more, Deadline: deadline}
	if completeLine {
		room.Kind = 1 // a line that still grows does not delay complete ones
	}
	switch {
	case mayGrow && c.s.unlimitedBytes.Load():
		c.s.bytes.Add(room)
		return nil
	case mayGrow && c.awaitRoom(ctx, c.s.bytes, room):
		return nil
	}
	c.s.bytes.Add(room) // charge frees it again
	c.charge(-int(n))
	c.lineComplete()
	return queue.Errorf(queue.CodeUnavailable, "your requests and answers in progress take %d bytes, the maximum per "+
		"user; read the answers, and send less at a time", userBytes)
}

// lineComplete lets another line of the user grow.
func (c *connShare) lineComplete() {
	if c.growing {
		c.growing = false
		c.s.growingLines.Release(fair.Request{User: c.uid})
	}
}

// beginRequest waits for room for a request. The caller must free it with endRequest.
func (c *connShare) beginRequest(ctx context.Context) error {
	deadline := time.Now().Add(maxRoomWait)
	if c.awaitRoom(ctx, c.s.connRequests, fair.Request{User: c.number, Deadline: deadline}) {
		if c.awaitRoom(ctx, c.s.requests, fair.Request{User: c.uid, Deadline: deadline}) {
			return nil
		}
		c.s.connRequests.Release(fair.Request{User: c.number})
	}
	return queue.Errorf(queue.CodeUnavailable, "too many requests are in progress (limits: %d per connection, %d per "+
		"user); wait for an answer before you send more", connRequests, userRequests)
}

// endRequest frees the bytes of a request and, if it had begun, its room.
func (c *connShare) endRequest(begun bool, bytes int) {
	if begun {
		c.s.connRequests.Release(fair.Request{User: c.number})
		c.s.requests.Release(fair.Request{User: c.uid})
	}
	c.charge(-bytes)
}

// openStream takes room for a stream. The function end frees the room. openStream does not wait for
// room, because streams may last long.
func (c *connShare) openStream() (end func(), err error) {
	r := fair.Request{User: c.uid}
	if !c.s.streams.TryAcquire(r) {
		return nil, queue.Errorf(queue.CodeUnavailable,
			"you have %d open streams (such as wait, logs and events), the maximum per user; close one", MaxStreams)
	}
	return func() { c.s.streams.Release(r) }, nil
}

// beginListRequest waits for room for a request about many jobs. The function end frees the room.
// The server reads the connection in the meantime.
func (c *connShare) beginListRequest(ctx context.Context) (end func(), err error) {
	r := fair.Request{User: c.uid, Deadline: time.Now().Add(maxRoomWait)}
	if c.s.lists.Acquire(ctx, r) != nil {
		return nil, queue.Errorf(queue.CodeUnavailable,
			"%d of your requests that list or change many jobs are in progress, the maximum per user; wait until one "+
				"of them is answered", userLists)
	}
	return func() { c.s.lists.Release(r) }, nil
}

// Helper reserves one of the extra goroutines that a user may have. It does not wait, and reports
// whether one was free. The caller must call end to return it.
func (s *UserLimits) Helper(ctx context.Context) (end func(), ok bool) {
	r := fair.Request{User: PeerFrom(ctx).UID}
	if !s.helpers.TryAcquire(r) {
		return nil, false
	}
	return func() { s.helpers.Release(r) }, true
}

// ChargeBytes adds n bytes to the user's share until the request of ctx ends.
func ChargeBytes(ctx context.Context, n int) {
	if t := activeRequestOf(ctx); t != nil {
		t.bytes += int64(n)
		t.conn.share.charge(n)
	}
}
