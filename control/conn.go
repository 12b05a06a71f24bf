package control

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// serverConn is the connection of one client.
type serverConn struct {
	net  net.Conn
	peer Peer // Right is the one at the time of connecting
	room *connShare

	hangUp context.CancelFunc // cancels the requests in progress

	write sync.Mutex // held while a line is written

	asking atomic.Int64 // number of requests whose answer is not ready

	mu      sync.Mutex
	active  int       // number of unanswered requests; guarded by mu
	since   time.Time // when active last changed; guarded by mu
	evicted bool      // guarded by mu
	// idle counts the user's connections that have no request, including this one. It is nil while
	// the connection is not in the connTable. The pointer is guarded by mu.
	idle *atomic.Int64
}

// readLine reads a line without its newline, at most MaxLine bytes, into a new buffer, whose
// capacity counts towards the share of the connection's user. The last line needs no newline if it
// has at most connBytes: a longer one was probably cut off, and parsing it would cost much more
// than sending it did. If reading fails, readLine returns the part of the line that has arrived.
func (s *Server) readLine(ctx context.Context, c *serverConn, in *bufio.Reader, first bool) (line []byte, err error) {
	for {
		part, err := in.ReadSlice('\n')
		ended := err == nil
		size := len(line) + len(part)
		if limit := s.lineLimit(c, size); ended && size > limit+1 || !ended && size > limit {
			return nil, queue.Errorf(queue.CodeTooLarge, "the request line is longer than %d bytes; send less per request", limit)
		}
		if size > cap(line) {
			grown := size
			if !ended {
				grown = min(max(size, 2*cap(line)), MaxLine+1)
			}
			if err := c.room.room(ctx, int64(grown-cap(line)), ended); err != nil {
				return nil, err
			}
			line = append(make([]byte, 0, grown), line...)
		}
		line = append(line, part...)
		switch {
		case ended:
			c.room.lineEnded()
			return line[:size-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
			if !first && size > connBytes {
				s.readWithin(c, stallLimit)
			}
			continue
		case errors.Is(err, io.EOF) && size > connBytes:
			return nil, queue.Errorf(queue.CodeParse, "the last line is longer than %d bytes and ends without a newline; end each request with a newline", connBytes)
		case errors.Is(err, io.EOF) && size > 0:
			c.room.lineEnded()
			return line, nil
		}
		return line, err
	}
}

// lineLimit returns the maximum length of a line of which size bytes have arrived so far.
func (s *Server) lineLimit(c *serverConn, size int) int {
	if size <= outsideLine {
		return MaxLine
	}
	peer := c.peer
	if peer.Right = s.gate.Right(&peer); !peer.Right.Covers(Read) {
		return outsideLine
	}
	return MaxLine
}

// mayWait reports whether err is a read timeout that occurred while a request was in progress. The
// connection was not idle then, so it stays open.
func (c *serverConn) mayWait(err error) bool {
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.active > 0
}

// errGone means that the client does not read what the server sends.
var errGone = errors.New("the client does not read the answer")

// send writes a line. If the client does not read it within limit, send closes the connection and
// returns errGone. A limit of 0 means no limit.
func (c *serverConn) send(line []byte, limit time.Duration) error {
	c.write.Lock()
	defer c.write.Unlock()
	deadline := time.Time{}
	if limit > 0 {
		deadline = time.Now().Add(limit)
	}
	c.net.SetWriteDeadline(deadline)
	if _, err := c.net.Write(line); err != nil {
		c.net.Close()
		return errGone
	}
	return nil
}

func (c *serverConn) begin()    { c.count(1) }
func (c *serverConn) finished() { c.count(-1) }

func (c *serverConn) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wasIdle := c.active == 0
	c.active += n
	c.since = time.Now()
	if isIdle := c.active == 0; c.idle != nil && isIdle != wasIdle {
		c.idle.Add(int64(-n))
	}
}

// listed adds the connection to its user's count of idle connections while it is idle. Calling it
// with nil removes it.
func (c *serverConn) listed(idle *atomic.Int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active == 0 && c.idle != nil {
		c.idle.Add(-1)
	}
	if c.idle = idle; c.active == 0 && idle != nil {
		idle.Add(1)
	}
}

// idleSince returns the time since which the connection has had no request in progress. ok is false
// if it has one.
func (c *serverConn) idleSince() (t time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since, c.active == 0 && !c.evicted
}

// isEvicted reports whether the connection was closed to make room for another one.
func (c *serverConn) isEvicted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.evicted
}

// endIfGone cancels the connection's requests if its client has hung up, and reports whether the client has.
func (c *serverConn) endIfGone() bool {
	gone := hungUp(c.net)
	if gone {
		c.hangUp()
	}
	return gone
}

// outside reports whether the peer had no right when it connected. The server answers one request
// of such a connection and closes it.
func (c *serverConn) outside() bool { return !c.peer.Right.Covers(Read) }

// task is a request in progress. Only one goroutine at a time uses it.
type task struct {
	request
	conn     *serverConn
	about    []string      // ids of the jobs that the parameters name, for the log
	key      string        // setting that the parameters name, for the log
	bytes    int64         // memory charged for the line and by Charge
	patience time.Duration // how long the client may take to read the answer
	line     []byte        // the answer, nil until it is ready
	told     []byte        // stream pieces that have not been sent yet
	stepping bool          // a Step is running, so tell does not send the pieces

	// Resources that end releases.
	begun bool        // the request has room in its user's share
	list  func()      // releases the room of a request about many jobs; nil if it has none
	class Class       // class of the slot for decoding the request
	leave func()      // releases that slot; nil if the request has none
	late  *time.Timer // calls leave earlier, after largeHold; nil for small requests
}

type taskKey struct{}

// taskOf returns the request of ctx, nil if there is none.
func taskOf(ctx context.Context) *task {
	t, _ := ctx.Value(taskKey{}).(*task)
	return t
}

// end releases everything that the request holds.
func (t *task) end() {
	if t.leave != nil {
		t.leave()
	}
	if t.late != nil {
		t.late.Stop()
	}
	if t.list != nil {
		t.list()
	}
	t.conn.finished()
	t.conn.room.end(t.begun, int(t.bytes)+len(t.line)+len(t.told))
}

// hold waits for the slot for decoding a request of size bytes, if it needs one.
func (t *task) hold(ctx context.Context, s *Shares, size int) error {
	if size <= connBytes {
		return nil
	}
	t.class = decoding
	if size > largeRequest {
		t.class = large
	}
	w := &waiter{class: t.class}
	if err := s.enter(ctx, w); err != nil {
		return err
	}
	t.leave = sync.OnceFunc(func() { s.leave(w) })
	if t.class == large {
		t.late = time.AfterFunc(largeHold, t.leave)
	}
	return nil
}

// decoded drops the line and, if the slot was only for decoding, releases the slot.
func (t *task) decoded(params any) {
	t.raw = nil
	if p, ok := params.(interface {
		subject() (ids []string, key string)
	}); ok {
		t.about, t.key = p.subject()
	}
	if t.leave != nil && t.class == decoding {
		t.leave()
	}
}

// answered stores the answer until it is sent, and charges its size to the user's share.
func (t *task) answered(line []byte) {
	t.conn.room.charge(len(line) - len(t.line))
	t.line = line
}

// tell sends a piece of a stream. During a Step it stores the piece instead, until the Step has
// ended.
func (t *task) tell(v any) error {
	if t.told == nil {
		t.told = *lines.Get().(*[]byte)
	}
	before := len(t.told)
	told, err := appendTold(t.told, t.method, t.id, v)
	if err != nil {
		return err
	}
	t.told = told
	t.conn.room.charge(len(told) - before)
	if t.stepping {
		return nil
	}
	return t.flush()
}

// flush sends the stored stream pieces.
func (t *task) flush() error {
	if len(t.told) == 0 {
		return nil
	}
	err := t.conn.send(t.told, t.patience)
	t.conn.room.charge(-len(t.told))
	if cap(t.told) <= keptLines {
		lines.Put(new(t.told[:0]))
	}
	t.told = nil
	return err
}

// lines holds reusable buffers for stream pieces, of up to keptLines bytes each. A stream has a
// buffer only while it has pieces to send.
var lines = sync.Pool{New: func() any { return new([]byte) }}

// keptLines is the largest capacity, in bytes, of a buffer that is kept for reuse.
const keptLines = 256 << 10

// manyJobs reports whether a request lists or changes many jobs.
func manyJobs(params any) bool {
	p, ok := params.(interface{ many() bool })
	return ok && p.many()
}
