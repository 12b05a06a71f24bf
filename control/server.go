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

	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/queue"
)

// These are limits of a connection, and of how many connections some users may have. See docs/decisions/0072.
const (
	firstLineTimeout          = 10 * time.Second // time until the first line must have arrived completely
	idleTimeout               = 5 * time.Minute  // time after which an idle connection without a stream is closed
	answerReadTimeout         = 5 * time.Second  // time that a client has to read an answer
	streamPieceReadTimeout    = time.Minute      // time that a client has to read a piece of a stream
	longLineStallTimeout      = 10 * time.Second // time to wait for more bytes of a line longer than uncountedBytesPerConn
	reservedAdminConns        = 8                // number of connections that only root and admins may use
	maxConnsWithoutAccess     = 8                // maximum number of connections of users without access
	maxLineBytesWithoutAccess = 64 << 10         // maximum bytes of a request line of a user without access
	hangUpCheckInterval       = time.Second      // interval of checks whether a client has disconnected
	requestsStopTimeout       = time.Second      // time that requests in progress get when the service stops
)

// At most largeRequestSlots requests longer than largeRequestBytes bytes are processed at the same time. After
// maxLargeRequestSlotTime, a request does not count any more, because it probably waits for something other than the
// processor.
const (
	largeRequestBytes       = 256 << 10
	maxLargeRequestSlotTime = time.Second
)

// ConnectionLimits holds the limits of a server that may change while the server runs. The server reads the limits
// again for each new connection.
type ConnectionLimits struct {
	// MaxConnections returns how many connections may be open in total, and how many for one user.
	MaxConnections func() (total, perUser int)
}

// Authorizer determines which actions each user may take.
type Authorizer interface {
	// CurrentRight returns the current right of a peer. The server calls it for each request, because rights may
	// change.
	CurrentRight(p *Peer) Right
	// AdmitConnection is called once per connection, before the first request on it is answered. If it returns an error,
	// the server sends the error and closes the connection.
	AdmitConnection(ctx context.Context, p *Peer) error
	// MissingRightError returns the error for a peer that lacks the right neededRight for an action. The error says
	// which users can grant the right.
	MissingRightError(p *Peer, action string, neededRight Right) error
}

// Server serves an API to the clients that connect to a listener.
type Server struct {
	// OnConcurrencyLimit is called for each request that arrives while another request is in progress or
	// another connection is open. It must not block. It may be set only before Run.
	OnConcurrencyLimit func()
	// StreamReadTimeout is how long a client may take to read a piece of a stream, or the answer at its end. 0
	// means unlimited. It may be set only before Run.
	StreamReadTimeout time.Duration

	api          API
	connLimits   ConnectionLimits
	authorizer   Authorizer
	userLimits   *UserLimits
	log          *slog.Logger
	identifyPeer func(net.Conn) (Peer, error)

	stopCtx context.Context    // ends when Run must stop
	stop    context.CancelFunc // cancels stopCtx

	servedConns connTable // connections that are served

	rejectionLoggedAtUnixNanos atomic.Int64 // when a rejected connection was last logged, in nanoseconds since 1970
	logLimiter                 logLimiter   // limits how many log lines each user causes
}

// NewServer returns a server for api. userLimits limits what each user may have in progress. The implementation
// of api must use the same UserLimits for its heavy work.
func NewServer(api API, limits ConnectionLimits, authorizer Authorizer, userLimits *UserLimits,
	log *slog.Logger) *Server {
	s := &Server{OnConcurrencyLimit: func() {}, StreamReadTimeout: streamPieceReadTimeout, api: api, connLimits: limits,
		authorizer: authorizer, userLimits: userLimits, log: log, identifyPeer: peerOf}
	s.stopCtx, s.stop = context.WithCancel(context.Background())
	return s
}

// InProcessClientAs returns a client in this process that acts as the peer p. The caller must have verified the
// identity of the peer. The server determines the peer's right at each request, and applies the same limits to this
// client as to other clients. The client works even if Run is not called.
func (s *Server) InProcessClientAs(p Peer) *Client {
	return &Client{dialInProcess: func() net.Conn {
		client, server := net.Pipe()
		// This goroutine ends when the connection is closed.
		go s.admitAndServeConn(context.Background(), identifiedConn{server, p})
		return client
	}}
}

// identifiedConn is a connection in this process. Its peer is known and need not be identified by the kernel.
type identifiedConn struct {
	net.Conn
	peer Peer
}

// Run accepts connections from l and serves them until ctx ends. Then it waits up to requestsStopTimeout for requests
// in progress, and closes all connections.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	calls, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer hangUp()
	s.userLimits.connLimiter.SetUnlimitedBytes(s.StreamReadTimeout == 0)
	stop := context.AfterFunc(ctx, func() {
		s.stop()
		l.Close()
		// The deadline makes only the reading of further requests fail. Requests in progress still get their answers.
		s.servedConns.forEachConn(func(c *serverConn) { c.netConn.SetReadDeadline(time.Now()) })
		time.AfterFunc(requestsStopTimeout, hangUp)
	})
	defer stop()
	context.AfterFunc(calls, func() { s.servedConns.forEachConn(func(c *serverConn) { c.netConn.Close() }) })
	pause := 5 * time.Millisecond
	arrivals := newUnservedConns()
	defer arrivals.connGoroutines.Wait()
	spare := openSpareFile()
	defer func() { spare.Close() }()
	for accepted := 1; ; accepted++ {
		c, err := l.Accept()
		switch {
		case err == nil:
			pause = 5 * time.Millisecond
			s.admitAndStartServing(calls, c, arrivals)
			if accepted%maxConnsAcceptedInARow == 0 {
				runtime.Gosched() // let the requests of other goroutines run
			}
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			hangUp()
			return fmt.Errorf("accept: %w", err)
		default: // probably no file descriptor is free; reject one connection with the spare one, and wait
			s.log.Warn("cannot accept a connection", "error", err)
			spare.Close()
			acceptAndRejectConn(l)
			spare = openSpareFile()
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, time.Second)
		}
	}
}

// openSpareFile opens a file that Run can close to get a free file descriptor when no other is free. It returns nil on
// failure.
func openSpareFile() *os.File {
	f, _ := os.Open(os.DevNull)
	return f
}

// acceptAndRejectConn accepts the connection that has waited longest, sends it an error and closes it. Accepting needs
// a file descriptor, so the caller has closed the spare file.
func acceptAndRejectConn(l net.Listener) {
	d, ok := l.(interface{ SetDeadline(time.Time) error })
	if !ok {
		return
	}
	d.SetDeadline(time.Now().Add(10 * time.Millisecond))
	defer d.SetDeadline(time.Time{})
	if c, err := l.Accept(); err == nil {
		defer c.Close()
		(&serverConn{netConn: c}).sendLine(encodeAnswerLine(nil, nil,
			queue.Errorf(queue.CodeUnavailable, "the service has reached its limit of open files; try again "+
				"later, or raise the limit")), answerReadTimeout)
	}
}

// readRequests reads request lines and starts to answer them, until the client closes the connection or stays idle for
// too long. If it returns an error, the caller sends the error to the client and closes the connection.
func (s *Server) readRequests(ctx context.Context, c *serverConn, requests *sync.WaitGroup) error {
	in := bufio.NewReaderSize(c.netConn, 8<<10)
	s.setReadTimeout(c, firstLineTimeout)
	for first := true; ; {
		line, err := s.readLine(ctx, c, in, first)
		if err != nil {
			var queueErr *queue.Error
			switch {
			case errors.As(err, &queueErr):
				return err
			case len(line) == 0 && c.isReadTimeoutWhileBusy(err) && !s.isStopping():
				s.setReadTimeout(c, idleTimeout)
				continue
			}
			return nil
		}
		if len(line) == 0 {
			c.fairConn.ForceAddBytes(-cap(line))
			continue
		}
		first = false
		if err := s.beginRequest(ctx, c, line, requests); err != nil || c.lacksAccess() || ctx.Err() != nil {
			return err
		}
		s.setReadTimeout(c, idleTimeout)
	}
}

// setReadTimeout sets how long the server waits for the next bytes of the connection. If the service is
// stopping, reads fail immediately.
func (s *Server) setReadTimeout(c *serverConn, d time.Duration) {
	c.netConn.SetReadDeadline(time.Now().Add(d))
	if s.isStopping() {
		c.netConn.SetReadDeadline(time.Now())
	}
}

// beginRequest parses a request and starts a goroutine that answers it. The caller must not use the line after
// the call. If beginRequest returns an error, the caller sends it to the client and closes the connection.
func (s *Server) beginRequest(ctx context.Context, c *serverConn, line []byte, requests *sync.WaitGroup) error {
	t := &activeRequest{conn: c, bytesChargedToUser: int64(cap(line)), clientReadTimeout: answerReadTimeout}
	c.addActiveRequests(1) // from here on, the connection does not count as idle, even while the request waits for room
	noRoom := c.fairConn.BeginRequest(ctx)
	t.countsTowardsLimits = noRoom == nil
	err := t.acquireDecodingSlot(ctx, s.userLimits, len(line))
	if err == nil {
		t.request, err = parseRequest(line)
	}
	switch {
	case ctx.Err() != nil:
		t.releaseResources()
		return nil
	// If a line cannot be parsed, close the connection. The line may be the first part of a request that contains a
	// newline, and then the next line is the rest of this request.
	case err != nil && t.id == nil && !errors.Is(err, queue.ErrInvalidRequest):
		t.releaseResources()
		return err
	case err == nil && noRoom != nil:
		err = noRoom
		if t.id == nil { // a request without an id gets no answer
			t.releaseResources()
			return nil
		}
	}
	if err != nil {
		t.releaseResources()
		c.sendLine(encodeAnswerLine(t.id, nil, err), answerReadTimeout)
		return nil
	}
	if c.lacksAccess() { // a user without access may send one request, such as whoami
		s.answerRequest(ctx, t)
		return nil
	}
	if c.unansweredRequestCount.Add(1) > 1 || s.servedConns.openCount.Load() > 1 {
		s.OnConcurrencyLimit()
	}
	requests.Go(func() {
		growGoroutineStack()
		s.answerRequest(ctx, t)
	})
	return nil
}

// growGoroutineStack grows the stack of a new goroutine to 32 KiB in one step, because a database call needs this much.
// Otherwise the stack would grow in several steps, and Go would copy it at each step. The copies would take 16 µs of
// the 320 µs of an enqueue.
//
//go:noinline
func growGoroutineStack() {
	var room [24 << 10]byte
	runtime.KeepAlive(&room)
}

func (s *Server) isStopping() bool { return s.stopCtx.Err() != nil }

// awaitRequestsOrHangUp is called after the client has sent its last request. It waits for the requests in progress. If
// the client hangs up, it cancels these requests.
func (s *Server) awaitRequestsOrHangUp(c *serverConn, requests *sync.WaitGroup) {
	if _, idle := c.idleSince(); idle {
		requests.Wait() // returns soon, since no request is in progress
		return
	}
	done := make(chan struct{})
	go func() { // this goroutine ends when all requests have ended
		requests.Wait()
		close(done)
	}()
	for {
		select {
		case <-done:
			return
		case <-time.After(hangUpCheckInterval):
			c.cancelRequestsIfClosed()
		}
	}
}

// answerRequest processes one request and sends the answer. If the API panics, the client gets an internal
// error, and the server continues to run.
func (s *Server) answerRequest(ctx context.Context, t *activeRequest) {
	defer t.releaseResources()
	began := time.Now()
	result, err := s.callMethod(context.WithValue(ctx, activeRequestKey{}, t), t)
	switch {
	case errors.Is(err, context.Canceled):
		err = queue.Errorf(queue.CodeUnavailable, "the service is stopping; try again later")
	case errors.Is(err, errClientNotReading):
		err = queue.Errorf(queue.CodeUnavailable, "%v", errClientNotReading) // only the log shows this error
	}
	s.logRequest(ctx, t, time.Since(began), result, err)
	// Decrease unansweredRequestCount before the answer is sent. The client may react to the answer with another
	// request, which must not count as concurrent.
	t.conn.unansweredRequestCount.Add(-1)
	if t.id == nil { // a request without an id gets no answer
		return
	}
	if err != nil || t.answerLine == nil {
		t.storeUnsentAnswer(encodeAnswerLine(t.id, result, err))
	}
	t.conn.sendLine(t.answerLine, t.clientReadTimeout)
}

// callMethod checks the right of the peer, decodes the parameters and calls the method of the API.
func (s *Server) callMethod(ctx context.Context, t *activeRequest) (result any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("a request caused a panic", "method", t.method, "panic", p, "stack", string(debug.Stack()))
			err = queue.Errorf(queue.CodeInternal, "internal error; see the log of the service")
		}
	}()
	failpoint.Hit("request")
	c, m := t.conn, findMethod(t.method)
	if m == nil {
		return nil, UnsupportedMethodError(t.method)
	}
	peer := c.peer
	if peer.Right = s.authorizer.CurrentRight(&peer); peer.Right != c.peer.Right {
		ctx = WithPeer(ctx, peer)
	}
	if !peer.Right.Covers(m.Right) {
		err := s.authorizer.MissingRightError(&peer, m.Name, m.Right)
		if peer.Right == RightNone {
			s.logRejectedConn(peer, err)
		}
		return nil, err
	}
	if t.id == nil && m.SendsNotifications {
		return nil, queue.Errorf(queue.CodeInvalidRequest, "method %s sends a stream, so its request must have an id", m.Name)
	}
	params, err := m.decodeParams(t.params)
	if err != nil {
		return nil, err
	}
	if m.SendsNotifications || isLongPoll(params) {
		end, err := c.fairConn.OpenStream()
		if err != nil {
			return nil, err
		}
		defer end()
		// Use the timeout for stream pieces for the answer too: before the client can read the answer, it may have to read
		// earlier pieces.
		t.clientReadTimeout = s.StreamReadTimeout
		// End the stream when the service stops. Otherwise the client would wait for more pieces in vain.
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.stopCtx, cancel)()
	}
	if t.finishDecoding(params); requestConcernsManyJobs(params) {
		end, err := c.fairConn.BeginListRequest(ctx)
		if err != nil {
			return nil, err
		}
		t.releaseFuncsAtEnd = append(t.releaseFuncsAtEnd, end)
	}
	return m.call(ctx, s.api, params, t.sendStreamPiece)
}

type peerKey struct{}

// WithPeer returns a context for a request of the peer p.
func WithPeer(ctx context.Context, p Peer) context.Context {
	return context.WithValue(queue.WithUserID(ctx, p.UID), peerKey{}, p)
}

// PeerFrom returns the peer that sent the request of ctx. It returns the zero Peer if ctx has no peer.
func PeerFrom(ctx context.Context) Peer {
	p, _ := ctx.Value(peerKey{}).(Peer)
	return p
}

// Peer is the process at the other end of a connection, with the right of its user.
type Peer struct {
	UID    int
	GID    int // -1 if the user namespace does not map the group, and always on Windows
	PID    int
	Groups []int // supplementary groups at the time of the connection
	Right  Right // right that the user had when the current request began
	// InboxRowNumber is set for a job that a database user has added to the store's inbox, a table of jobs to
	// enqueue: it is the number of the job's row. It is 0 for requests that do not come from the inbox.
	InboxRowNumber int64
}

// peerOf returns the peer of a connection. It does not set the peer's right.
func peerOf(c net.Conn) (Peer, error) {
	p, err := socket.PeerOf(c)
	return Peer{UID: p.UID, GID: p.GID, PID: p.PID, Groups: p.Groups}, err
}

// IsRoot reports whether the peer is root or an elevated administrator, who can do everything on this machine.
func (p *Peer) IsRoot() bool { return socket.IsRoot(p.UID, p.Groups) }
