package fair

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Conns bounds what each user has in progress over all connections: requests, streams and bytes. What a bound
// still allows is called room. Its methods are safe for concurrent use.
type Conns struct {
	bounds       ConnBounds
	onBytesFreed func()

	requestLimiter, listLimiter, streamLimiter *Limiter
	// connRequestLimiter limits the requests in progress on each connection. Request.User is Conn.number here.
	connRequestLimiter *Limiter
	byteLimiter        *Limiter // counts the bytes of request lines and answers in progress
	growingLineLimiter *Limiter // counts incomplete request lines that may exceed FreeBytes

	unlimitedBytes atomic.Bool
	lastConn       atomic.Int64 // number of the newest connection
	hangUps        hangUpWatch
}

// ConnBounds holds the bounds of Conns. Each bound is per user, unless its comment says otherwise.
type ConnBounds struct {
	Requests     int64         // maximum number of requests in progress
	ConnRequests int64         // maximum number of requests in progress on one connection
	Lists        int64         // maximum number of requests in progress that list or change many jobs
	Streams      int64         // maximum number of streams
	MaxBytes     int64         // maximum number of bytes of request lines and answers, without FreeBytes
	FreeBytes    int64         // number of bytes of each connection that do not count towards MaxBytes
	MaxWait      time.Duration // how long a request waits for room within the bounds
}

// NewConns returns a Conns without connections. Conns calls onBytesFreed each time the bytes of a user in
// progress have decreased.
func NewConns(bounds ConnBounds, onBytesFreed func()) *Conns {
	perUser := func(n int64) *Limiter { return NewLimiter(Bound{Max: n}) }
	return &Conns{bounds: bounds, onBytesFreed: onBytesFreed, requestLimiter: perUser(bounds.Requests),
		listLimiter: perUser(bounds.Lists), streamLimiter: perUser(bounds.Streams),
		connRequestLimiter: perUser(bounds.ConnRequests), byteLimiter: perUser(bounds.MaxBytes),
		growingLineLimiter: perUser(1)}
}

// SetUnlimitedBytes turns the bound on bytes off (true) or on (false). The server turns the bound off if its
// clients may read as slowly as they like.
func (s *Conns) SetUnlimitedBytes(unlimited bool) { s.unlimitedBytes.Store(unlimited) }

// UnlimitedBytes reports whether the bound on bytes is off.
func (s *Conns) UnlimitedBytes() bool { return s.unlimitedBytes.Load() }

// Usage returns the number of a user's requests, including those that wait for room, and the bytes of the
// user's request lines and answers.
func (s *Conns) Usage(uid int) (requests, bytes int64) {
	return s.requestLimiter.InUse(uid, 0) + int64(s.requestLimiter.WaitingCount(uid)), s.byteLimiter.InUse(uid, 0)
}

// Conn is one connection. It counts what the connection uses of the bounds of its user.
type Conn struct {
	conns  *Conns
	uid    int
	number int // unique number of the connection
	// cancelIfHungUp reports whether the client has hung up and, if so, cancels the connection's requests. It
	// is called every roomHangUpInterval while the connection waits for room.
	cancelIfHungUp func() bool

	inUseBytes atomic.Int64 // size of the connection's request lines and answers in progress
	// lineGrowing means that the line that is being read may exceed FreeBytes although its end has not arrived.
	// Only the goroutine that reads the line uses the field.
	lineGrowing bool
}

// Connect returns a new connection of a user.
func (s *Conns) Connect(uid int, cancelIfHungUp func() bool) *Conn {
	return &Conn{conns: s, uid: uid, number: int(s.lastConn.Add(1)), cancelIfHungUp: cancelIfHungUp}
}

// Close frees the bytes of the connection. The caller must have ended all its requests before.
func (c *Conn) Close() {
	c.AddBytes(-int(c.inUseBytes.Load()))
	c.EndLine()
}

// awaitRoom waits until the Limiter has room for the request r. It returns false if it gets no room. While it
// waits, the server does not read from the connection, so hangUps checks whether the client has hung up.
func (c *Conn) awaitRoom(ctx context.Context, l *Limiter, r Request) bool {
	if l.TryAcquire(r) {
		return true
	}
	c.conns.hangUps.add(c)
	defer c.conns.hangUps.remove(c)
	return l.Acquire(ctx, r) == nil
}

// addConnBytes adds n to the bytes of the connection. The first FreeBytes of each connection do not count for the
// user, so addConnBytes returns how much the user's number of bytes changes. The caller must add this result to
// Conns.byteLimiter.
func (c *Conn) addConnBytes(n int64) int64 {
	bytes := c.inUseBytes.Add(n)
	free := c.conns.bounds.FreeBytes
	return max(0, bytes-free) - max(0, bytes-n-free)
}

// AddBytes adds n to the bytes in progress, even if that exceeds the bound. A negative n frees bytes.
func (c *Conn) AddBytes(n int) {
	if more := c.addConnBytes(int64(n)); more != 0 {
		c.conns.byteLimiter.ForceAdd(Request{User: c.uid, Amount: more})
		if more < 0 {
			c.conns.onBytesFreed()
		}
	}
}

// AwaitLineBytes waits for room for n more bytes of a request line. completeLine says whether the end of the
// line has arrived. Only one incomplete line of a user at a time may exceed the FreeBytes of its connection: if
// there were two, each could take half of the room and wait forever for the other half.
func (c *Conn) AwaitLineBytes(ctx context.Context, n int64, completeLine bool) error {
	more := c.addConnBytes(n)
	if more == 0 {
		return nil
	}
	deadline := time.Now().Add(c.conns.bounds.MaxWait)
	if !completeLine && !c.lineGrowing {
		c.lineGrowing = c.awaitRoom(ctx, c.conns.growingLineLimiter, Request{User: c.uid, Deadline: deadline})
	}
	mayGrow, room := completeLine || c.lineGrowing, Request{User: c.uid, Amount: more, Deadline: deadline}
	if completeLine {
		room.Kind = 1 // complete lines do not wait behind incomplete ones
	}
	switch {
	case mayGrow && c.conns.unlimitedBytes.Load():
		c.conns.byteLimiter.ForceAdd(room)
		return nil
	case mayGrow && c.awaitRoom(ctx, c.conns.byteLimiter, room):
		return nil
	}
	c.conns.byteLimiter.ForceAdd(room) // these bytes are not counted yet, but AddBytes below subtracts them
	c.AddBytes(-int(n))
	c.EndLine()
	return queue.Errorf(queue.CodeUnavailable, "your requests and answers in progress take %d bytes, the maximum per "+
		"user; try again when your other commands have received their answers, or send less at a time",
		c.conns.bounds.MaxBytes)
}

// EndLine is called at the end of each line. If the line was the user's one incomplete line that could exceed
// FreeBytes, another incomplete line of the user may now do so.
func (c *Conn) EndLine() {
	if c.lineGrowing {
		c.lineGrowing = false
		c.conns.growingLineLimiter.Release(Request{User: c.uid})
	}
}

// BeginRequest waits for room for a request. If it returns nil, the caller must free the room with EndRequest.
func (c *Conn) BeginRequest(ctx context.Context) error {
	deadline := time.Now().Add(c.conns.bounds.MaxWait)
	if c.awaitRoom(ctx, c.conns.connRequestLimiter, Request{User: c.number, Deadline: deadline}) {
		if c.awaitRoom(ctx, c.conns.requestLimiter, Request{User: c.uid, Deadline: deadline}) {
			return nil
		}
		c.conns.connRequestLimiter.Release(Request{User: c.number})
	}
	return queue.Errorf(queue.CodeUnavailable, "too many requests are in progress (limits: %d per connection, %d per "+
		"user); wait for an answer before you send more", c.conns.bounds.ConnRequests, c.conns.bounds.Requests)
}

// EndRequest frees the bytes of a request and, if requestBegun is true, the room that BeginRequest has taken.
func (c *Conn) EndRequest(requestBegun bool, bytes int) {
	if requestBegun {
		c.conns.connRequestLimiter.Release(Request{User: c.number})
		c.conns.requestLimiter.Release(Request{User: c.uid})
	}
	c.AddBytes(-bytes)
}

// OpenStream takes room for a stream. The returned function frees the room. If there is no room, OpenStream
// returns an error instead of waiting, because streams may last long.
func (c *Conn) OpenStream() (endStream func(), err error) {
	r := Request{User: c.uid}
	if !c.conns.streamLimiter.TryAcquire(r) {
		return nil, queue.Errorf(queue.CodeUnavailable,
			"you have %d open streams (such as wait, logs and events), the maximum per user; close one", c.conns.bounds.Streams)
	}
	return func() { c.conns.streamLimiter.Release(r) }, nil
}

// BeginList waits for room for a request about many jobs. The returned function frees the room. The server
// continues to read from the connection while the request waits.
func (c *Conn) BeginList(ctx context.Context) (endList func(), err error) {
	r := Request{User: c.uid, Deadline: time.Now().Add(c.conns.bounds.MaxWait)}
	if c.conns.listLimiter.Acquire(ctx, r) != nil {
		return nil, queue.Errorf(queue.CodeUnavailable,
			"%d of your requests that list or change many jobs are in progress, the maximum per user; wait until one "+
				"of them is answered", c.conns.bounds.Lists)
	}
	return func() { c.conns.listLimiter.Release(r) }, nil
}
