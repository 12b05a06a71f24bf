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

	"github.com/queuectl/queuectl/queue"
)

// reconnectFor is how long a client tries to reach a service whose connection
// broke, before it gives a request up.
const reconnectFor = 5 * time.Second

// A service that has said nothing for silentFor after a request is asked who it is, and given up if it
// does not say so within answerFor: systemd takes connections for one that cannot start.
const (
	silentFor = 20 * time.Second
	answerFor = 10 * time.Second
)

// ServiceAccount is the account that packages run the service as.
const ServiceAccount = "queuectl"

// lastWords is how long a client goes on reading when it can write no more: a service
// that lets nobody in says why before it closes.
const lastWords = time.Second

// Client speaks to a running service. It connects at its first call, and again
// when the connection breaks: an enqueue, which carries a key, and whatever
// changes nothing are then repeated once.
type Client struct {
	path   string
	within func() net.Conn // makes a connection to a server in this process, instead of path

	mu   sync.Mutex
	conn *clientConn // nil before the first call; guarded by mu
}

// clientConn is one connection; it ends with the first error.
type clientConn struct {
	net   net.Conn
	write sync.Mutex

	reading sync.Mutex    // held by whoever reads
	in      *bufio.Reader // guarded by reading
	readsOn sync.Once     // starts the goroutine that reads until the end

	next   atomic.Int64
	heard  atomic.Int64 // lines
	silent atomic.Bool  // it was given up

	mu   sync.Mutex
	open map[int64]*call // guarded by mu
	err  error           // why it has ended; guarded by mu
}

// call is a request that is not answered.
type call struct {
	result json.RawMessage
	err    error
	done   chan struct{}
	once   sync.Once
	pieces chan json.RawMessage // of a stream
}

// NewClient makes a client of the service on a socket.
func NewClient(path string) *Client { return &Client{path: path} }

// Path is the socket.
func (c *Client) Path() string { return c.path }

// Close ends the connection.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return nil
	}
	err := c.conn.net.Close()
	c.conn = nil
	return err
}

// ErrUnreachable means that no service is running on the socket. It is not a *queue.Error: errors.Is compares only the
// codes of those, so every other error with the code unavailable would count as ErrUnreachable.
var ErrUnreachable = errors.New("the service is not running")

// errOverloaded means that a service is running, but did not accept the connection in time.
var errOverloaded = &queue.Error{Code: queue.CodeUnavailable, Message: "the service is overloaded: too many clients are connecting; try again later"}

// unreachable is an ErrUnreachable with its cause.
type unreachable struct {
	path  string
	cause error
}

// Error names the socket.
func (u *unreachable) Error() string {
	return fmt.Sprintf("no service answers on %s: %v", u.path, u.cause)
}

// Unwrap makes errors.Is match ErrUnreachable, the code unavailable and the cause.
func (u *unreachable) Unwrap() []error { return []error{ErrUnreachable, queue.ErrUnavailable, u.cause} }

// Connect reaches the service, if that has not happened yet.
func (c *Client) Connect(ctx context.Context) error {
	_, err := c.connection(ctx)
	return err
}

func (c *Client) connection(ctx context.Context) (*clientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil && c.conn.failed() == nil && (c.within != nil || !c.conn.left()) {
		return c.conn, nil
	}
	if c.conn != nil {
		c.conn.net.Close()
	}
	nc, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	c.conn = newClientConn(nc)
	return c.conn, nil
}

// dial makes a connection to the service, if that is who it should be.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	if c.within != nil {
		return c.within(), nil
	}
	if err := CheckSocketPath(c.path); err != nil {
		return nil, err
	}
	nc, err := Dial(ctx, c.path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, notLetIn(c.path)
	case err == errOverloaded, errors.Is(err, context.Canceled): // neither shows that no service is running
		return nil, err
	case err != nil:
		return nil, &unreachable{c.path, err}
	}
	if err := checkServer(nc, c.path); err != nil {
		nc.Close()
		return nil, err
	}
	return nc, nil
}

func (c *clientConn) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// errSilent means that somebody takes connections for a service that does not answer.
var errSilent = &queue.Error{Code: queue.CodeUnavailable, Message: "the service accepts connections but does not answer, so it is unknown whether the request was carried out; see its log (for the system service: " + whereLog + ")"}

// errBroken means that the connection ended before the answer.
var errBroken = errors.New("the connection to the service was lost")

// readAtOnce is how much of an answer is read at once.
const readAtOnce = 16 << 10

func newClientConn(nc net.Conn) *clientConn {
	c := &clientConn{net: nc, in: bufio.NewReaderSize(nc, readAtOnce), open: map[int64]*call{}}
	if !readsAlone {
		c.readOn()
	}
	return c
}

// left reports whether the service has closed a connection that nobody reads.
func (c *clientConn) left() bool {
	if !readsAlone || !c.reading.TryLock() {
		return false
	}
	defer c.reading.Unlock()
	return hungUp(c.net)
}

// readOn has a goroutine read until the connection ends, which Close makes.
func (c *clientConn) readOn() {
	c.readsOn.Do(func() {
		go func() {
			c.reading.Lock()
			defer c.reading.Unlock()
			var err error
			for err == nil {
				err = c.read()
			}
			c.broke(err)
		}()
	})
}

// readFor reads until a call is answered, or the connection has ended: who can do nothing
// but wait spares a goroutine, and so a thread, by that. It reports false if another reads.
// See docs/decisions/0096.
func (c *clientConn) readFor(o *call) bool {
	if !readsAlone || !c.reading.TryLock() {
		return false
	}
	defer c.reading.Unlock()
	for {
		select {
		case <-o.done:
			return true
		default:
		}
		if err := c.read(); err != nil {
			c.broke(err)
			return true
		}
	}
}

// read takes one line.
func (c *clientConn) read() error {
	line, err := readLine(c.in)
	if err != nil {
		return err
	}
	c.heard.Add(1)
	return c.take(line)
}

// broke ends the connection, and the calls that are open, with a cause.
func (c *clientConn) broke(cause error) {
	c.net.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err = errors.Join(errBroken, cause); c.silent.Load() {
		c.err = errSilent
	}
	for id, o := range c.open {
		delete(c.open, id)
		o.finish(nil, c.err)
	}
}

// take gives a line to the call that it is for.
func (c *clientConn) take(line []byte) error {
	m, err := parseReply(line)
	if err != nil {
		return queue.Errorf(queue.CodeUnavailable, "the answer was cut off or did not come from queuectld (%v); check that the service is running, and try again", err)
	}
	if m.id == 0 {
		return m.err // of the connection as a whole
	}
	c.mu.Lock()
	o := c.open[m.id]
	if m.piece == nil {
		delete(c.open, m.id)
	}
	c.mu.Unlock()
	switch {
	case o == nil:
	case m.piece == nil:
		o.finish(m.result, m.err)
	case o.pieces != nil:
		select {
		case o.pieces <- m.piece: // a slow reader holds up its own connection only
		case <-o.done:
		}
	}
	return nil
}

// finish ends a call. Only who sends its pieces may call it.
func (o *call) finish(result json.RawMessage, err error) {
	o.once.Do(func() {
		o.result, o.err = result, err
		if o.pieces != nil {
			close(o.pieces)
		}
		close(o.done)
	})
}

// abandon ends a call whose caller wants no more of it; pieces may still come.
func (o *call) abandon() { o.once.Do(func() { close(o.done) }) }

// send begins a call.
func (c *clientConn) send(method string, params any, streams bool) (*call, int64, error) {
	id := c.next.Add(1)
	line, err := requestLine(id, method, params)
	if err != nil {
		return nil, 0, fmt.Errorf("encode the request: %w", err)
	}
	if len(line) > MaxLine+1 {
		return nil, 0, queue.Errorf(queue.CodeTooLarge, "the request is %d bytes long, but the limit is %d; send less", len(line)-1, MaxLine)
	}
	o := &call{done: make(chan struct{})}
	if streams {
		o.pieces = make(chan json.RawMessage, 64)
	}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, 0, c.err
	}
	c.open[id] = o
	c.mu.Unlock()
	c.write.Lock()
	defer c.write.Unlock()
	c.net.SetWriteDeadline(time.Now().Add(time.Minute))
	if _, err := c.net.Write(line); err != nil {
		c.net.SetReadDeadline(time.Now().Add(lastWords)) // then it ends, which all calls are told, this one too
	}
	return o, id, nil
}

// call asks and waits for the answer. again says that the request may be
// repeated when the connection breaks.
func (c *Client) call(ctx context.Context, method string, params, result any, again bool, each func(json.RawMessage) error) error {
	deadline := time.Now().Add(reconnectFor)
	for tries := 0; ; {
		conn, err := c.connection(ctx)
		if err == nil {
			var sent bool
			if sent, err = conn.ask(ctx, method, params, result, each); sent {
				tries++
			}
		}
		broken := errors.Is(err, errBroken) || tries > 0 && errors.Is(err, queue.ErrUnavailable)
		if !broken || !again || tries > 1 || time.Now().After(deadline) {
			return tell(err, tries)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Ask carries out a method that Readable knows, and returns its result as it came.
func (c *Client) Ask(ctx context.Context, m *Method, params json.RawMessage) (result json.RawMessage, err error) {
	err = c.call(ctx, m.Name, params, &result, true, nil)
	return result, err
}

// whyItEnded names where to find out why the service has ended.
const whyItEnded = "to find out why it ended, see its log (for the system service: " + whereLog + ") and queuectl doctor"

// tell makes an error of the connection one with a code.
func tell(err error, tries int) error {
	if _, away := errors.AsType[*unreachable](err); away && tries > 0 {
		return &queue.Error{Code: queue.CodeUnavailable, Message: "the service stopped before it answered and has not come back; it is unknown whether the request was carried out; start the service with: queuectl service start; " + whyItEnded}
	}
	if err == errOverloaded && tries > 0 {
		return &queue.Error{Code: queue.CodeUnavailable, Message: "the connection to the service was lost before the answer, and the service is now overloaded; it is unknown whether the request was carried out"}
	}
	if !errors.Is(err, errBroken) {
		return err
	}
	if e, said := errors.AsType[*queue.Error](err); said {
		return e // the server said why it closed
	}
	if tries > 0 {
		return &queue.Error{Code: queue.CodeUnavailable, Message: "the service stopped before it answered; it is unknown whether the request was carried out; " + whyItEnded}
	}
	return queue.Errorf(queue.CodeUnavailable, "the service stopped before it received the request; try again")
}

// probe gives up a service that has not said anything since so many lines, and does not say who
// it is.
func (c *clientConn) probe(since int64) {
	if c.heard.Load() != since {
		return
	}
	o, _, err := c.send("hello", HelloParams{}, false)
	if err != nil {
		return // it has ended, or takes nothing more
	}
	select {
	case <-o.done:
	case <-time.After(answerFor):
		if c.heard.Load() == since {
			c.silent.Store(true)
			c.net.Close()
		}
	}
}

// ask sends one request and waits; sent says whether it may have arrived.
func (c *clientConn) ask(ctx context.Context, method string, params, result any, each func(json.RawMessage) error) (sent bool, err error) {
	heard := c.heard.Load()
	probe := time.AfterFunc(silentFor, func() { c.probe(heard) })
	defer probe.Stop()
	o, id, err := c.send(method, params, each != nil)
	if err != nil {
		return false, err
	}
	if each == nil && ctx.Done() == nil && c.readFor(o) {
		return true, o.read(method, result)
	}
	c.readOn()
	give := func(err error) (bool, error) {
		c.mu.Lock()
		delete(c.open, id)
		c.mu.Unlock()
		o.abandon()
		return true, err
	}
	if each != nil {
		for reading := true; reading; {
			select {
			case piece, more := <-o.pieces:
				if reading = more; more {
					if err := each(piece); err != nil {
						return give(err)
					}
				}
			case <-ctx.Done():
				c.net.Close() // the only way to end a stream early
				return give(ctx.Err())
			}
		}
	}
	select {
	case <-o.done:
	case <-ctx.Done():
		return give(ctx.Err())
	}
	return true, o.read(method, result)
}

// read reads the answer of a call that has ended.
func (o *call) read(method string, into any) error {
	if o.err != nil {
		return o.err
	}
	if err := decodeAnswer(o.result, into); err != nil {
		return fmt.Errorf("invalid response from the service to method %s: %w", method, err)
	}
	return nil
}

// decodeAnswer reads a value out of a line that parseReply has passed.
func decodeAnswer(raw json.RawMessage, into any) error {
	if own, ok := into.(json.Unmarshaler); ok { // json.Unmarshal would read it all again
		return own.UnmarshalJSON(raw)
	}
	return json.Unmarshal(raw, into)
}

// NewKey makes a key for an enqueue: one that nobody else of its user has, but no secret.
func NewKey() string {
	return strconv.FormatUint(rand.Uint64(), 36) + strconv.FormatUint(rand.Uint64(), 36)
}
