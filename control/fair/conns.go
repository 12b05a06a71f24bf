package fair

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// ConnLimiter bounds what each user has in progress over all connections: requests, streams and bytes. The part of a
// bound that is not in use is called room. Its methods are safe for concurrent use.
type ConnLimiter struct {
	bounds       ConnBounds
	onBytesFreed func()

	requestLimiter, listRequestLimiter, streamLimiter *Limiter
	// connRequestLimiter limits the requests in progress on each connection. Request.UserID is Conn.connNumber here.
	connRequestLimiter    *Limiter
	byteLimiter           *Limiter // counts the bytes of request lines and answers in progress
	incompleteLineLimiter *Limiter // counts incomplete request lines that may exceed UncountedBytesPerConn, one per user

	unlimitedBytes atomic.Bool
	lastConnNumber atomic.Int64 // number of the newest connection
	hangUps        hangUpWatch
}

// ConnBounds holds the bounds of a ConnLimiter. Each bound is per user, unless its comment says otherwise.
type ConnBounds struct {
	MaxUserRequests     int64 // maximum number of requests in progress
	MaxConnRequests     int64 // maximum number of requests in progress on one connection
	MaxUserListRequests int64 // maximum number of requests in progress that list or change many jobs
	MaxUserStreams      int64 // maximum number of streams
	// maximum number of bytes of request lines and answers, without UncountedBytesPerConn
	MaxUserBytesInProgress int64
	// number of bytes of each connection that do not count towards MaxUserBytesInProgress
	UncountedBytesPerConn int64
	MaxRequestWait        time.Duration // how long a request waits for room within the bounds
}

// NewConnLimiter returns a ConnLimiter without connections. The ConnLimiter calls onBytesFreed each time a user's
// number of bytes in progress has decreased.
func NewConnLimiter(bounds ConnBounds, onBytesFreed func()) *ConnLimiter {
	perUser := func(n int64) *Limiter { return NewLimiter(Bound{MaxAmount: n}) }
	return &ConnLimiter{bounds: bounds, onBytesFreed: onBytesFreed, requestLimiter: perUser(bounds.MaxUserRequests),
		listRequestLimiter: perUser(bounds.MaxUserListRequests), streamLimiter: perUser(bounds.MaxUserStreams),
		connRequestLimiter: perUser(bounds.MaxConnRequests), byteLimiter: perUser(bounds.MaxUserBytesInProgress),
		incompleteLineLimiter: perUser(1)}
}

// SetUnlimitedBytes turns the bound on bytes off (true) or on (false). The server turns the bound off if its
// clients may read as slowly as they like.
func (s *ConnLimiter) SetUnlimitedBytes(unlimited bool) { s.unlimitedBytes.Store(unlimited) }

// UnlimitedBytes reports whether the bound on bytes is off.
func (s *ConnLimiter) UnlimitedBytes() bool { return s.unlimitedBytes.Load() }

// Usage returns the number of a user's requests, including requests that wait for room, and the number of bytes of the
// user's request lines and answers in progress.
func (s *ConnLimiter) Usage(uid int) (requestCount, byteCount int64) {
	return s.requestLimiter.InUse(uid, 0) + int64(s.requestLimiter.WaitingCount(uid)), s.byteLimiter.InUse(uid, 0)
}

// Conn is one connection. It counts how much of the bounds of its user the connection uses.
type Conn struct {
	*ConnLimiter
	uid        int
	connNumber int // unique number of the connection
	// cancelIfHungUp reports whether the client has hung up and, if so, cancels the connection's requests. It
	// is called every hangUpCheckInterval while the connection waits for room.
	cancelIfHungUp func() bool

	bytesInProgress atomic.Int64 // size of the connection's request lines and answers in progress
	// holdsIncompleteLineSlot means that the line that is being read is incomplete but may exceed UncountedBytesPerConn.
	// Only the goroutine that reads the line uses the field.
	holdsIncompleteLineSlot bool
}

// NewConn returns a new connection of a user.
func (s *ConnLimiter) NewConn(uid int, cancelIfHungUp func() bool) *Conn {
	return &Conn{ConnLimiter: s, uid: uid, connNumber: int(s.lastConnNumber.Add(1)), cancelIfHungUp: cancelIfHungUp}
}

// Close frees the bytes of the connection. Before, the caller must end all requests of the connection.
func (c *Conn) Close() {
	c.ForceAddBytes(-int(c.bytesInProgress.Load()))
	c.EndRequestLine()
}

// acquireUnlessHungUp waits until the Limiter has room for the request r. It returns false if r gets no room. While
// acquireUnlessHungUp waits, the server does not read from the connection and cannot notice that the client hangs up,
// so hangUps checks this.
func (c *Conn) acquireUnlessHungUp(ctx context.Context, l *Limiter, r Request) bool {
	if l.TryAcquire(r) {
		return true
	}
	c.hangUps.add(c)
	defer c.hangUps.remove(c)
	return l.Acquire(ctx, r) == nil
}

// addBytesReturningCountedDelta adds n to the bytes of the connection. The first UncountedBytesPerConn bytes of each
// connection do not count towards MaxUserBytesInProgress. So addBytesReturningCountedDelta returns how much the number
// of bytes that count has changed. The caller must add this result to ConnLimiter.byteLimiter.
func (c *Conn) addBytesReturningCountedDelta(byteDelta int64) int64 {
	bytes := c.bytesInProgress.Add(byteDelta)
	free := c.bounds.UncountedBytesPerConn
	return max(0, bytes-free) - max(0, bytes-byteDelta-free)
}

// ForceAddBytes adds n to the bytes in progress, even if that exceeds the bound. A negative n frees bytes.
func (c *Conn) ForceAddBytes(byteDelta int) {
	if more := c.addBytesReturningCountedDelta(int64(byteDelta)); more != 0 {
		c.byteLimiter.ForceAcquire(Request{UserID: c.uid, Amount: more})
		if more < 0 {
			c.onBytesFreed()
		}
	}
}

// AcquireLineBytes waits for room for byteCount more bytes of a request line. lineIsComplete says whether the end of
// the line has arrived. Only one incomplete line of a user at a time may exceed the UncountedBytesPerConn of its
// connection. If two lines could, each might take half of the room and wait forever for the other half.
func (c *Conn) AcquireLineBytes(ctx context.Context, byteCount int64, lineIsComplete bool) error {
	more := c.addBytesReturningCountedDelta(byteCount)
	if more == 0 {
		return nil
	}
	deadline := time.Now().Add(c.bounds.MaxRequestWait)
	if !lineIsComplete && !c.holdsIncompleteLineSlot {
		c.holdsIncompleteLineSlot = c.acquireUnlessHungUp(ctx, c.incompleteLineLimiter,
			Request{UserID: c.uid, Deadline: deadline})
	}
	mayGrow, room := lineIsComplete || c.holdsIncompleteLineSlot, Request{UserID: c.uid, Amount: more, Deadline: deadline}
	if lineIsComplete {
		room.WaitQueueKind = 1 // complete lines do not wait behind incomplete ones
	}
	switch {
	case mayGrow && c.unlimitedBytes.Load():
		c.byteLimiter.ForceAcquire(room)
		return nil
	case mayGrow && c.acquireUnlessHungUp(ctx, c.byteLimiter, room):
		return nil
	}
	c.byteLimiter.ForceAcquire(room) // these bytes are not counted yet, but ForceAddBytes below subtracts them
	c.ForceAddBytes(-int(byteCount))
	c.EndRequestLine()
	return queue.Errorf(queue.CodeUnavailable, "your requests and answers in progress take %d bytes, the maximum per "+
		"user; try again when your other commands have received their answers, or send less at a time",
		c.bounds.MaxUserBytesInProgress)
}

// EndRequestLine ends the line that the connection is reading. If this line was the one incomplete line of the user
// that may exceed UncountedBytesPerConn, another incomplete line of the user now may.
func (c *Conn) EndRequestLine() {
	if c.holdsIncompleteLineSlot {
		c.holdsIncompleteLineSlot = false
		c.incompleteLineLimiter.Release(Request{UserID: c.uid})
	}
}

// BeginRequest waits for room for a request. If it returns nil, the caller must free the room with EndRequest.
func (c *Conn) BeginRequest(ctx context.Context) error {
	deadline := time.Now().Add(c.bounds.MaxRequestWait)
	if c.acquireUnlessHungUp(ctx, c.connRequestLimiter, Request{UserID: c.connNumber, Deadline: deadline}) {
		if c.acquireUnlessHungUp(ctx, c.requestLimiter, Request{UserID: c.uid, Deadline: deadline}) {
			return nil
		}
		c.connRequestLimiter.Release(Request{UserID: c.connNumber})
	}
	return queue.Errorf(queue.CodeUnavailable, "too many requests are in progress (limits: %d per connection, %d per "+
		"user); wait for an answer before you send more", c.bounds.MaxConnRequests, c.bounds.MaxUserRequests)
}

// EndRequest frees the bytes of a request. If requestBegun is true, EndRequest also frees the room that BeginRequest
// has taken.
func (c *Conn) EndRequest(requestBegun bool, requestBytes int) {
	if requestBegun {
		c.connRequestLimiter.Release(Request{UserID: c.connNumber})
		c.requestLimiter.Release(Request{UserID: c.uid})
	}
	c.ForceAddBytes(-requestBytes)
}

// OpenStream takes room for a stream. The returned function frees the room. If there is no room, OpenStream
// returns an error instead of waiting, because streams may last long.
func (c *Conn) OpenStream() (endStream func(), err error) {
	r := Request{UserID: c.uid}
	if !c.streamLimiter.TryAcquire(r) {
		return nil, queue.Errorf(queue.CodeUnavailable,
			"you have %d open streams (such as wait, logs and events), the maximum per user; close one",
			c.bounds.MaxUserStreams)
	}
	return func() { c.streamLimiter.Release(r) }, nil
}

// BeginListRequest waits for room for a request about many jobs. The returned function frees the room. The server
// continues to read from the connection while the request waits.
func (c *Conn) BeginListRequest(ctx context.Context) (endListRequest func(), err error) {
	r := Request{UserID: c.uid, Deadline: time.Now().Add(c.bounds.MaxRequestWait)}
	if c.listRequestLimiter.Acquire(ctx, r) != nil {
		return nil, queue.Errorf(queue.CodeUnavailable,
			"%d of your requests that list or change many jobs are in progress, the maximum per user; wait until one "+
				"of them is answered", c.bounds.MaxUserListRequests)
	}
	return func() { c.listRequestLimiter.Release(r) }, nil
}
