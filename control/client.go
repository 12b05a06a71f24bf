package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/queue"
)

// reconnectTimeout is how long a client tries to reconnect after it has lost its connection.
const reconnectTimeout = 5 * time.Second

// If the service sends nothing for helloProbeDelay after a request, the client calls the method hello. If nothing
// arrives within helloProbeTimeout after that call, the client closes the connection. Otherwise it could wait forever:
// systemd listens on the socket of a service and accepts connections even if the service cannot start.
const (
	helloProbeDelay   = 20 * time.Second
	helloProbeTimeout = 10 * time.Second
)

// writeErrorReadTimeout is how long a client continues to read after a write has failed. The reason for the failure
// may be that the service has rejected the connection: the service then sends an error before it closes the connection.
const writeErrorReadTimeout = time.Second

// Client calls the API of a running service over its socket. It connects at the first call and reconnects after it has
// lost the connection. If the connection is lost during a call, Client repeats the call once, but only if a second
// execution does no harm. For example, a call that changes nothing or an enqueue with an idempotency key does no harm.
type Client struct {
	socketPath string
	// dialInProcess returns a connection to a server in this process. nil means that the client connects to
	// socketPath.
	dialInProcess func() net.Conn

	mu          sync.Mutex
	currentConn *clientConn // nil before the first call; guarded by mu
}

// clientConn is one connection of a client. The first error of the connection ends it.
type clientConn struct {
	netConn net.Conn
	writeMu sync.Mutex

	readMu           sync.Mutex    // held by the goroutine that reads from the connection
	reader           *bufio.Reader // guarded by readMu
	startReadingOnce sync.Once     // starts startReading's goroutine, which reads until the connection ends

	lastRequestID        atomic.Int64 // id of the newest request
	receivedLineCount    atomic.Int64 // number of lines received
	closedAsUnresponsive atomic.Bool  // closeIfUnresponsive closed the connection, because the service did not answer

	mu           sync.Mutex
	pendingCalls map[int64]*call // guarded by mu
	endCause     error           // reason why the connection has ended; nil until then; guarded by mu
}

// call is a request that was sent, and its result when it has ended.
type call struct {
	result       json.RawMessage
	err          error
	done         chan struct{}        // closed when the call has ended
	endOnce      sync.Once            // ends the call
	streamPieces chan json.RawMessage // receives the pieces of a stream; nil for other calls
}

// NewClient returns a client of the service that listens on a socket.
func NewClient(socketPath string) *Client { return &Client{socketPath: socketPath} }

// Clone returns a client of the same service that uses its own connection.
func (c *Client) Clone() *Client {
	return &Client{socketPath: c.socketPath, dialInProcess: c.dialInProcess}
}

// Close closes the connection.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.currentConn == nil {
		return nil
	}
	err := c.currentConn.netConn.Close()
	c.currentConn = nil
	return err
}

// ErrUnreachable means that no service listens on the socket. It is not a *queue.Error, because errors.Is compares
// *queue.Errors only by their codes. As a *queue.Error, ErrUnreachable would match every error with the code
// unavailable.
var ErrUnreachable = errors.New("the service is not running")

// unreachableError matches ErrUnreachable and also contains the cause.
type unreachableError struct {
	socketPath string
	cause      error
}

// Error names the socket.
func (u *unreachableError) Error() string {
	return fmt.Sprintf("no service answers on %s (%v); start the service, or check --socket", u.socketPath, u.cause)
}

// Unwrap lets errors.Is find ErrUnreachable, queue.ErrUnavailable and the cause.
func (u *unreachableError) Unwrap() []error {
	return []error{ErrUnreachable, queue.ErrUnavailable, u.cause}
}

// Connect connects to the service if the client is not connected yet.
func (c *Client) Connect(ctx context.Context) error {
	_, err := c.ensureConn(ctx)
	return err
}

// ensureConn returns the connection of the client. It connects if the client has no connection or has lost it.
func (c *Client) ensureConn(ctx context.Context) (*clientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.currentConn != nil && c.currentConn.endError() == nil && (c.dialInProcess != nil || !c.currentConn.isClosed()) {
		return c.currentConn, nil
	}
	if c.currentConn != nil {
		c.currentConn.netConn.Close()
	}
	nc, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	c.currentConn = newClientConn(nc)
	return c.currentConn, nil
}

// dial connects to the service. It returns an error if the server runs as a user that the client does not
// trust.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	if c.dialInProcess != nil {
		return c.dialInProcess(), nil
	}
	if err := socket.CheckPath(c.socketPath); err != nil {
		return nil, err
	}
	nc, err := socket.Dial(ctx, c.socketPath)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, socket.AccessDeniedError(c.socketPath)
	case err == socket.ErrServiceOverloaded, errors.Is(err, context.Canceled): // a service may be running
		return nil, err
	case err != nil:
		return nil, &unreachableError{c.socketPath, err}
	}
	if err := socket.CheckServerTrusted(nc, c.socketPath); err != nil {
		nc.Close()
		return nil, err
	}
	return nc, nil
}

// endError returns why the connection has ended. It returns nil if the connection has not ended.
func (c *clientConn) endError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endCause
}

// errUnresponsive means that the socket accepts connections but the service does not answer.
var errUnresponsive = &queue.Error{Code: queue.CodeUnavailable,
	Message: "the service accepts connections but does not answer, so it is unknown whether the request was carried " +
		"out; see its log (for the system service: " + socket.ServiceLogHint + ")"}

// errConnectionLost means that the connection ended before the answer arrived.
var errConnectionLost = errors.New("the connection to the service was lost")

// readBufferSize is the size of the buffer for reading answers, in bytes.
const readBufferSize = 16 << 10

func newClientConn(nc net.Conn) *clientConn {
	c := &clientConn{netConn: nc, reader: bufio.NewReaderSize(nc, readBufferSize), pendingCalls: map[int64]*call{}}
	if !socket.CallerMayReadReply {
		c.startReading()
	}
	return c
}

// isClosed reports whether the service has closed the connection. It returns false without a check if another
// goroutine reads from the connection, because that goroutine notices the end.
func (c *clientConn) isClosed() bool {
	if !socket.CallerMayReadReply || !c.readMu.TryLock() {
		return false
	}
	defer c.readMu.Unlock()
	return socket.IsClosedByPeer(c.netConn)
}

// startReading starts a goroutine that reads until the connection is closed.
func (c *clientConn) startReading() {
	c.startReadingOnce.Do(func() {
		go func() {
			c.readMu.Lock()
			defer c.readMu.Unlock()
			var err error
			for err == nil {
				err = c.readAndDeliver()
			}
			c.closeWithError(err)
		}()
	})
}

// readUntilAnswered reads in the caller's goroutine until awaitedCall has ended. This saves a second goroutine and the
// thread that the goroutine would need. If another goroutine is already reading, readUntilAnswered returns false
// immediately. See docs/decisions/0096.
func (c *clientConn) readUntilAnswered(awaitedCall *call) bool {
	if !socket.CallerMayReadReply || !c.readMu.TryLock() {
		return false
	}
	defer c.readMu.Unlock()
	for {
		select {
		case <-awaitedCall.done:
			return true
		default:
		}
		if err := c.readAndDeliver(); err != nil {
			c.closeWithError(err)
			return true
		}
	}
}

// readAndDeliver reads one line and passes it to the call that the line answers.
func (c *clientConn) readAndDeliver() error {
	line, err := readLine(c.reader)
	if err != nil {
		return err
	}
	c.receivedLineCount.Add(1)
	return c.deliverToCall(line)
}

// closeWithError closes the connection and ends all open calls with an error that contains cause.
func (c *clientConn) closeWithError(cause error) {
	c.netConn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.endCause = errors.Join(errConnectionLost, cause); c.closedAsUnresponsive.Load() {
		c.endCause = errUnresponsive
	}
	for id, o := range c.pendingCalls {
		delete(c.pendingCalls, id)
		o.finish(nil, c.endCause)
	}
}

// deliverToCall passes the line of an answer or of a stream piece to the call that the line belongs to.
func (c *clientConn) deliverToCall(answerLine []byte) error {
	m, err := parseReply(answerLine)
	if err != nil {
		return queue.Errorf(queue.CodeUnavailable, "another program answers on the socket, or the answer was cut off "+
			"(%v); check --socket, or try again", err)
	}
	if m.requestID == 0 {
		return m.err // an error without an id concerns the whole connection
	}
	c.mu.Lock()
	o := c.pendingCalls[m.requestID]
	if m.streamPiece == nil {
		delete(c.pendingCalls, m.requestID)
	}
	c.mu.Unlock()
	switch {
	case o == nil:
	case m.streamPiece == nil:
		o.finish(m.result, m.err)
	case o.streamPieces != nil:
		select {
		case o.streamPieces <- m.streamPiece: // a slow caller delays only the calls on its own connection
		case <-o.done:
		}
	}
	return nil
}

// finish ends a call with its result or error. It closes the channel streamPieces. Therefore only the goroutine that
// sends to this channel may call finish.
func (c *call) finish(result json.RawMessage, err error) {
	c.endOnce.Do(func() {
		c.result, c.err = result, err
		if c.streamPieces != nil {
			close(c.streamPieces)
		}
		close(c.done)
	})
}

// abandon ends a call whose caller no longer waits for the result. Pieces of a stream may still arrive for the call, so
// abandon does not close the channel streamPieces.
func (c *call) abandon() { c.endOnce.Do(func() { close(c.done) }) }

// send sends a request. Without waiting for the answer, it returns the call and the id of the request.
func (c *clientConn) send(method string, params any, isStream bool) (*call, int64, error) {
	id := c.lastRequestID.Add(1)
	line, err := encodeRequestLine(id, method, params)
	if err != nil {
		return nil, 0, fmt.Errorf("cannot encode the request (%w); this is a bug in queuectl; please report it", err)
	}
	if len(line) > MaxLineBytes+1 {
		return nil, 0, queue.Errorf(queue.CodeTooLarge, "the request is %d bytes long, but the limit is %d; send less",
			len(line)-1, MaxLineBytes)
	}
	o := &call{done: make(chan struct{})}
	if isStream {
		o.streamPieces = make(chan json.RawMessage, 64)
	}
	c.mu.Lock()
	if c.endCause != nil {
		c.mu.Unlock()
		return nil, 0, c.endCause
	}
	c.pendingCalls[id] = o
	c.mu.Unlock()
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	c.netConn.SetWriteDeadline(time.Now().Add(time.Minute))
	if _, err := c.netConn.Write(line); err != nil {
		// The service may have sent the reason before it closed the connection, so continue to read. After
		// writeErrorReadTimeout, reading fails with a timeout, which ends the connection and all its calls.
		c.netConn.SetReadDeadline(time.Now().Add(writeErrorReadTimeout))
	}
	return o, id, nil
}

// call sends a request, waits for the answer and stores the result in *result. For a stream, it passes each piece to
// handleStreamPiece; for other methods, handleStreamPiece is nil. If repeatIfConnLost is true and the connection is
// lost, call sends the request once more.
func (c *Client) call(ctx context.Context, method string, params, result any, repeatIfConnLost bool,
	handleStreamPiece func(json.RawMessage) error) error {
	deadline := time.Now().Add(reconnectTimeout)
	for tries := 0; ; {
		conn, err := c.ensureConn(ctx)
		if err == nil {
			var maybeReceived bool
			if maybeReceived, err = conn.roundTrip(ctx, method, params, result, handleStreamPiece); maybeReceived {
				tries++
			}
		}
		broken := errors.Is(err, errConnectionLost) || tries > 0 && errors.Is(err, queue.ErrUnavailable)
		if !broken || !repeatIfConnLost || tries > 1 || time.Now().After(deadline) {
			return connErrorWithCode(err, tries)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// CallReadOnlyMethod calls a method that changes nothing and returns its result as JSON. The caller gets m from
// FindReadOnlyMethod.
func (c *Client) CallReadOnlyMethod(ctx context.Context, m *Method, params json.RawMessage) (result json.RawMessage,
	err error) {
	err = c.call(ctx, m.Name, params, &result, true, nil)
	return result, err
}

// serviceEndedHint says how the user can find out why the service has ended.
const serviceEndedHint = "to find out why it ended, see its log (for the system service: " + socket.ServiceLogHint +
	") and queuectl doctor"

// unknownOutcomeText is the part of an error message that says that a request may have been carried out.
const unknownOutcomeText = "it is unknown whether the request was carried out"

// connErrorWithCode converts an error of the connection to an error with an error code. timesSent is how many times the
// request may have been sent. If timesSent is not 0, the message says that the request may have been carried out.
func connErrorWithCode(err error, timesSent int) error {
	if _, unreachableNow := errors.AsType[*unreachableError](err); unreachableNow && timesSent > 0 {
		return queue.Errorf(queue.CodeUnavailable, "the service stopped before it answered and has not come back; %s; start "+
			"the service with: queuectl service start; %s", unknownOutcomeText, serviceEndedHint)
	}
	if err == socket.ErrServiceOverloaded && timesSent > 0 {
		return queue.Errorf(queue.CodeUnavailable, "the connection to the service was lost before the answer, and the "+
			"service is now overloaded; %s; check this before you repeat it", unknownOutcomeText)
	}
	if !errors.Is(err, errConnectionLost) {
		return err
	}
	if e, fromServer := errors.AsType[*queue.Error](err); fromServer {
		return e // the server has sent the reason why it closed the connection
	}
	if timesSent > 0 {
		return queue.Errorf(queue.CodeUnavailable, "the service stopped before it answered; %s; %s", unknownOutcomeText,
			serviceEndedHint)
	}
	return queue.Errorf(queue.CodeUnavailable, "the service stopped before it received the request; try again")
}

// closeIfUnresponsive closes the connection if the service does not answer any more. receivedLinesBefore is the number
// of lines that had been received when the request was sent. If no line has arrived since then, closeIfUnresponsive
// calls the method hello. If no line arrives for another helloProbeTimeout, it closes the connection.
func (c *clientConn) closeIfUnresponsive(receivedLinesBefore int64) {
	if c.receivedLineCount.Load() != receivedLinesBefore {
		return
	}
	o, _, err := c.send("hello", HelloParams{}, false)
	if err != nil {
		return // the connection has ended, or the service no longer reads
	}
	select {
	case <-o.done:
	case <-time.After(helloProbeTimeout):
		if c.receivedLineCount.Load() == receivedLinesBefore {
			c.closedAsUnresponsive.Store(true)
			c.netConn.Close()
		}
	}
}

// roundTrip sends one request, waits for the answer and stores it in *result. For a stream, it passes each piece to
// handleStreamPiece. maybeReceived says whether the service may have received the request.
func (c *clientConn) roundTrip(ctx context.Context, method string, params, result any,
	handleStreamPiece func(json.RawMessage) error) (maybeReceived bool, err error) {
	linesReceived := c.receivedLineCount.Load()
	probe := time.AfterFunc(helloProbeDelay, func() { c.closeIfUnresponsive(linesReceived) })
	defer probe.Stop()
	o, id, err := c.send(method, params, handleStreamPiece != nil)
	if err != nil {
		return false, err
	}
	if handleStreamPiece == nil && ctx.Done() == nil && c.readUntilAnswered(o) {
		return true, o.decodeResult(method, result)
	}
	c.startReading()
	abandonCall := func(err error) (bool, error) {
		c.mu.Lock()
		delete(c.pendingCalls, id)
		c.mu.Unlock()
		o.abandon()
		return true, err
	}
	if handleStreamPiece != nil {
		for reading := true; reading; {
			select {
			case piece, more := <-o.streamPieces:
				if reading = more; more {
					if err := handleStreamPiece(piece); err != nil {
						return abandonCall(err)
					}
				}
			case <-ctx.Done():
				c.netConn.Close() // closing the connection is the only way to end a stream early
				return abandonCall(ctx.Err())
			}
		}
	}
	select {
	case <-o.done:
	case <-ctx.Done():
		return abandonCall(ctx.Err())
	}
	return true, o.decodeResult(method, result)
}

// decodeResult stores the result of an ended call in *target, or returns the call's error.
func (c *call) decodeResult(method string, target any) error {
	if c.err != nil {
		return c.err
	}
	return decodeResultJSON(method, c.result, target)
}

// decodeResultJSON decodes the result in an answer. parseReply has already checked that the answer is valid JSON.
func decodeResultJSON(method string, raw json.RawMessage, target any) (err error) {
	if own, ok := target.(json.Unmarshaler); ok { // json.Unmarshal would scan the line again
		err = own.UnmarshalJSON(raw)
	} else {
		err = json.Unmarshal(raw, target)
	}
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		err = fmt.Errorf("the type of %q is %s", t.Field, t.Value)
	}
	if err != nil {
		err = fmt.Errorf("this program does not understand the service's answer to %s (%w); if the service has another "+
			"version, run: queuectl service restart", method, err)
	}
	return err
}

// NewIdempotencyKey returns a random key for an enqueue request. A request with a key can be repeated safely.
// The key is unique but not secret.
func NewIdempotencyKey() string {
	return strconv.FormatUint(rand.Uint64(), 36) + strconv.FormatUint(rand.Uint64(), 36)
}
