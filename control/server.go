package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/queue"
)

// Limits of a connection.
// See docs/decisions/0072.
const (
	firstLine   = 10 * time.Second // for the first line to be whole
	idleLimit   = 5 * time.Minute  // without a request or an open stream
	answerLimit = 5 * time.Second  // for an answer to be taken
	tellLimit   = time.Minute      // for a piece of a stream to be taken
	stallLimit  = 10 * time.Second // for more of a line that is longer than connBytes
	forAdmins   = 8                // connections kept for root and admins
	forOutside  = 8                // connections at once of people who have no right
	outsideLine = 64 << 10         // bytes of a line of theirs
	hangUpLook  = time.Second      // between looks whether a half-closed client is gone
	stopLimit   = time.Second      // for requests under way when the service stops
)

// Of requests that are longer than largeRequest, in bytes, only so many are carried out at
// once (see largePlaces). One that takes longer than largeHold waits for something else than
// the processor, and lets the next one begin.
const (
	largeRequest = 256 << 10
	largeHold    = time.Second
)

// Limits are the settings of a server; they are asked at each connection.
type Limits struct {
	// Connections is how many there may be at once, and of one user.
	Connections func() (all, user int)
}

// Authorizer says who may do what.
type Authorizer interface {
	// Right is what a peer may do now; it is asked at each request.
	Right(p *Peer) Right
	// Admit is asked once a connection, before its first request is answered; an error
	// ends it.
	Admit(ctx context.Context, p *Peer) error
	// Refuse is why a peer may not do what needs a right, and who could let it.
	Refuse(p *Peer, what string, needs Right) error
}

// Server answers the API on a listener.
type Server struct {
	// Crowded is called at each request that comes while another is under way on
	// its connection or another connection is open. It must not wait. Change it
	// before Run only.
	Crowded func()
	// Patience is how long a reader of a stream may take for a piece of it, or for its
	// end; 0 is for ever. Change it before Run only.
	Patience time.Duration

	api    API
	limits Limits
	gate   Authorizer
	shares *Shares
	log    *slog.Logger
	peerOf func(net.Conn) (Peer, error)
	within bool // its client is in this process

	stopping chan struct{} // closed when Run is to end

	conns connTable

	denied atomic.Int64 // when that was last logged, in nanoseconds since 1970
	lines  requestLog   // limits the log lines of users
}

// NewServer makes a server, whose users have shares of what it does. The API takes its
// places from the same shares.
func NewServer(api API, limits Limits, gate Authorizer, shares *Shares, log *slog.Logger) *Server {
	return &Server{Crowded: func() {}, Patience: tellLimit, api: api, limits: limits, gate: gate, shares: shares, log: log, peerOf: PeerOf, stopping: make(chan struct{})}
}

// Within makes a client in this process, which is served as p; Run serves nobody else then.
func (s *Server) Within(p Peer) *Client {
	s.peerOf = func(net.Conn) (Peer, error) { return p, nil }
	s.within = true
	return &Client{within: func() net.Conn {
		client, server := net.Pipe()
		go s.serve(context.Background(), server) // ends when the connection closes
		return client
	}}
}

// As makes a client in this process, which is served as a peer beside those that Run serves: within their
// limits, and with the right that the peer has at each request. Whoever asks says who the peer is.
func (s *Server) As(p Peer) *Client {
	return &Client{within: func() net.Conn {
		client, server := net.Pipe()
		go s.serve(context.Background(), knownConn{server, p}) // ends when the connection closes
		return client
	}}
}

// knownConn is a connection in this process, of which it is known who is at the other end.
type knownConn struct {
	net.Conn
	peer Peer
}

// Run serves until ctx ends; then it lets requests under way be answered for a
// moment, and closes what is left.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	calls, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer hangUp()
	s.shares.setUnbound(s.Patience == 0)
	stop := context.AfterFunc(ctx, func() {
		close(s.stopping)
		l.Close()
		// This stops further reads. Requests in progress still get their responses.
		s.conns.each(func(c *serverConn) { c.net.SetReadDeadline(time.Now()) })
		time.AfterFunc(stopLimit, hangUp)
	})
	defer stop()
	context.AfterFunc(calls, func() { s.conns.each(func(c *serverConn) { c.net.Close() }) })
	pause := 5 * time.Millisecond
	arrivals := newArrivals()
	defer arrivals.conns.Wait()
	spare := openSpare()
	defer func() { spare.Close() }()
	for accepted := 1; ; accepted++ {
		c, err := l.Accept()
		switch {
		case err == nil:
			pause = 5 * time.Millisecond
			s.arrive(calls, c, arrivals)
			if accepted%acceptBurst == 0 {
				runtime.Gosched() // lets waiting requests use the processor
			}
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			hangUp()
			return fmt.Errorf("accept: %w", err)
		default: // no descriptors, most likely: wait, do not spin
			s.log.Warn("cannot accept a connection", "error", err)
			spare.Close()
			turnAway(l)
			spare = openSpare()
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, time.Second)
		}
	}
}

// openSpare holds a descriptor that can be given up when there are no others; nil
// if there is none even now.
func openSpare() *os.File {
	f, _ := os.Open(os.DevNull)
	return f
}

// turnAway tells the client that waits longest that it cannot be served, with the
// descriptor that was spared.
func turnAway(l net.Listener) {
	d, ok := l.(interface{ SetDeadline(time.Time) error })
	if !ok {
		return
	}
	d.SetDeadline(time.Now().Add(10 * time.Millisecond))
	defer d.SetDeadline(time.Time{})
	if c, err := l.Accept(); err == nil {
		defer c.Close()
		(&serverConn{net: c}).send(answerLine(nil, nil, queue.Errorf(queue.CodeUnavailable, "the service has reached its limit of open files; try again later, or raise that limit")), answerLimit)
	}
}

// read reads lines and has them answered until the client sends no more. An
// error is for the client; the connection is then closed.
func (s *Server) read(ctx context.Context, c *serverConn, calls *sync.WaitGroup) error {
	in := bufio.NewReaderSize(c.net, 8<<10)
	s.readWithin(c, firstLine)
	for first := true; ; {
		line, err := s.readLine(ctx, c, in, first)
		if err != nil {
			var refused *queue.Error
			switch {
			case errors.As(err, &refused):
				return err
			case len(line) == 0 && c.mayWait(err) && !s.isStopping():
				s.readWithin(c, idleLimit)
				continue
			}
			return nil
		}
		if len(line) == 0 {
			c.room.charge(-cap(line))
			continue
		}
		first = false
		if err := s.begin(ctx, c, line, calls); err != nil || c.outside() || ctx.Err() != nil {
			return err
		}
		s.readWithin(c, idleLimit)
	}
}

// readWithin has the connection's next bytes come within a while, and at once when the
// service stops.
func (s *Server) readWithin(c *serverConn, d time.Duration) {
	c.net.SetReadDeadline(time.Now().Add(d))
	if s.isStopping() {
		c.net.SetReadDeadline(time.Now())
	}
}

// begin reads a request, which owns its line from now on, and has it answered. An error is
// for the client; the connection is then closed.
func (s *Server) begin(ctx context.Context, c *serverConn, line []byte, calls *sync.WaitGroup) error {
	t := &task{conn: c, bytes: int64(cap(line)), patience: answerLimit}
	c.begin() // a connection whose request waits for room is not idle
	full := c.room.begin(ctx)
	t.begun = full == nil
	err := t.hold(ctx, s.shares, len(line))
	if err == nil {
		t.request, err = parseRequest(line)
	}
	switch {
	case ctx.Err() != nil:
		t.end()
		return nil
	case err != nil && t.id == nil && !errors.Is(err, queue.ErrRequest): // the next line may not begin where a request does
		t.end()
		return err
	case err == nil && full != nil:
		err = full
		if t.id == nil { // a notification gets no answer, not even that it was not carried out
			t.end()
			return nil
		}
	}
	if err != nil {
		t.end()
		c.send(answerLine(t.id, nil, err), answerLimit)
		return nil
	}
	if c.outside() { // it may ask who it is, once
		s.answer(ctx, t)
		return nil
	}
	if c.asking.Add(1) > 1 || s.conns.open.Load() > 1 {
		s.Crowded()
	}
	calls.Go(func() {
		growStack()
		s.answer(ctx, t)
	})
	return nil
}

// growStack has a goroutine that begins get at once the 32 KiB of stack that an answer of the store's needs. Grown
// bit by bit, as it goes deeper, it would be copied with all that is on it each time: 16 us of 320 for an enqueue.
//
//go:noinline
func growStack() {
	var room [24 << 10]byte
	runtime.KeepAlive(&room)
}

func (s *Server) isStopping() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}

// finish lets requests under way be answered after the client has sent its
// last; a client that has gone altogether is not waited for.
func (s *Server) finish(c *serverConn, calls *sync.WaitGroup) {
	if _, idle := c.idleSince(); idle {
		calls.Wait() // the requests have ended, or are about to end
		return
	}
	done := make(chan struct{})
	go func() { // ends with the last call
		calls.Wait()
		close(done)
	}()
	for {
		select {
		case <-done:
			return
		case <-time.After(hangUpLook):
			c.endIfGone()
		}
	}
}

// answer carries out one request. A panic costs its caller an answer of
// internal, nobody else anything.
func (s *Server) answer(ctx context.Context, t *task) {
	defer t.end()
	began := time.Now()
	result, err := s.carryOut(context.WithValue(ctx, taskKey{}, t), t)
	switch {
	case errors.Is(err, context.Canceled):
		err = queue.Errorf(queue.CodeUnavailable, "the service is stopping; try again later")
	case errors.Is(err, errGone):
		err = queue.Errorf(queue.CodeUnavailable, "%v", errGone) // which the log alone hears
	}
	s.logRequest(ctx, t, time.Since(began), result, err)
	t.conn.asking.Add(-1) // who has the answer may ask again at once
	if t.id == nil {      // a notification
		return
	}
	if err != nil || t.line == nil {
		t.answered(answerLine(t.id, result, err))
	}
	t.conn.send(t.line, t.patience)
}

func (s *Server) carryOut(ctx context.Context, t *task) (result any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("a request caused a panic", "method", t.method, "panic", p, "stack", string(debug.Stack()))
			err = queue.Errorf(queue.CodeInternal, "internal error; see the log of the service")
		}
	}()
	failpoint.Hit("request")
	c, m := t.conn, methodOf(t.method)
	if m == nil {
		return nil, UnsupportedMethod(t.method)
	}
	peer := c.peer
	if peer.Right = s.gate.Right(&peer); peer.Right != c.peer.Right {
		ctx = WithPeer(ctx, peer)
	}
	if !peer.Right.Covers(m.Right) {
		err := s.gate.Refuse(&peer, m.Name, m.Right)
		if peer.Right == None {
			s.logDenied(peer, err)
		}
		return nil, err
	}
	if t.id == nil && m.Stream {
		return nil, queue.Errorf(queue.CodeRequest, "method %s sends a stream, so its request must have an id", m.Name)
	}
	params, err := m.does.decode(t.raw)
	if err != nil {
		return nil, err
	}
	if m.Stream || mayLast(params) {
		end, err := c.room.stream()
		if err != nil {
			return nil, err
		}
		defer end()
		t.patience = s.Patience // what was told before may not be read yet
		// Nothing that a stopping service could still tell is worth waiting for.
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		go func() { // ends with the call
			select {
			case <-s.stopping:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	if t.decoded(params); manyJobs(params) {
		if t.list, err = c.room.list(ctx); err != nil {
			return nil, err
		}
	}
	return m.does.call(ctx, s.api, params, t.tell)
}

type peerKey struct{}

// WithPeer is ctx for what a peer asks.
func WithPeer(ctx context.Context, p Peer) context.Context {
	return context.WithValue(queue.WithUser(ctx, p.UID), peerKey{}, p)
}

// PeerFrom is who asks; the zero Peer when nobody was named.
func PeerFrom(ctx context.Context) Peer {
	p, _ := ctx.Value(peerKey{}).(Peer)
	return p
}

// Peer is who is at the other end of the socket, by the kernel's word.
type Peer struct {
	UID    int
	GID    int // -1 if this user namespace does not know it; always on Windows
	PID    int
	Groups []int // the supplementary ones, when the connection was made
	Right  Right // what it may do, as of what it asks
	// Submission is the number in the store's inbox of what it enqueues, in whose name the service itself asks; 0 is none.
	Submission int64
}
