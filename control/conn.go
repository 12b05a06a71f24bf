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

	"github.com/queuectl/queuectl/control/fair"
	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/queue"
)

// serverConn is the server's end of one client's connection.
type serverConn struct {
	netConn  net.Conn
	peer     Peer       // peer.Right is the right that the user had when the connection was made
	fairConn *fair.Conn // counts how much of its user's limits the connection uses

	cancelRequests context.CancelFunc // cancels the requests in progress

	writeMu sync.Mutex // held while a line is written

	unansweredRequestCount atomic.Int64 // number of requests whose answer is not ready yet

	mu                      sync.Mutex
	activeRequestCount      int       // number of requests that have not ended; guarded by mu
	activeRequestsChangedAt time.Time // when activeRequestCount last changed; guarded by mu
	evicted                 bool      // closed to make room for another connection; guarded by mu
}

// readLine reads a line of at most MaxLineBytes bytes and returns it without its newline, in a new buffer. The
// buffer counts towards the user's limit of bytes. The last line of a connection may lack its newline. But if
// such a line is longer than uncountedBytesPerConn, readLine rejects it, because it was probably cut off and parsing it
// would cost much. isFirstLine says whether this is the connection's first line. If reading fails, readLine returns
// the part of the line that has arrived.
func (s *Server) readLine(
	ctx context.Context, c *serverConn, reader *bufio.Reader, isFirstLine bool,
) (line []byte, err error) {
	for {
		part, err := reader.ReadSlice('\n')
		ended := err == nil
		size := len(line) + len(part)
		if limit := s.maxLineBytesFor(c, size); ended && size > limit+1 || !ended && size > limit {
			return nil, queue.Errorf(queue.CodeTooLarge, "the request is longer than %d bytes, the limit for your rights on "+
				"this service; make the input of the job smaller, or send fewer jobs per request", limit)
		}
		if size > cap(line) {
			grown := size
			if !ended {
				grown = min(max(size, 2*cap(line)), MaxLineBytes+1)
			}
			if err := c.fairConn.AcquireLineBytes(ctx, int64(grown-cap(line)), ended); err != nil {
				return nil, err
			}
			line = append(make([]byte, 0, grown), line...)
		}
		line = append(line, part...)
		switch {
		case ended:
			c.fairConn.EndRequestLine()
			return line[:size-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
			if !isFirstLine && size > uncountedBytesPerConn {
				s.setReadTimeout(c, longLineStallTimeout)
			}
			continue
		case errors.Is(err, io.EOF) && size > uncountedBytesPerConn:
			return nil, queue.Errorf(queue.CodeParse, "the last line is longer than %d bytes and ends without a newline; end "+
				"each request with a newline", uncountedBytesPerConn)
		case errors.Is(err, io.EOF) && size > 0:
			c.fairConn.EndRequestLine()
			return line, nil
		}
		return line, err
	}
}

// maxLineBytesFor returns the maximum length of the line that is being received. The limit is lower for users without
// access. maxLineBytesFor looks up the user's right only if receivedBytes exceeds this lower limit.
func (s *Server) maxLineBytesFor(c *serverConn, receivedBytes int) int {
	if receivedBytes <= maxLineBytesWithoutAccess {
		return MaxLineBytes
	}
	peer := c.peer
	if peer.Right = s.authorizer.CurrentRight(&peer); !peer.Right.Covers(RightRead) {
		return maxLineBytesWithoutAccess
	}
	return MaxLineBytes
}

// isReadTimeoutWhileBusy reports whether err is a read timeout that occurred while a request was in progress. The
// connection is then not idle, so the caller keeps it open.
func (c *serverConn) isReadTimeoutWhileBusy(err error) bool {
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.activeRequestCount > 0
}

// errClientNotReading means that the client does not read what the server sends to it.
var errClientNotReading = errors.New("the client does not read the answer")

// sendLine writes a line. If the client does not read the line within the timeout, sendLine closes the connection and
// returns errClientNotReading. A timeout of 0 means no limit.
func (c *serverConn) sendLine(line []byte, timeout time.Duration) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	deadline := time.Time{}
	if timeout > 0 {
		deadline = time.Now().Add(timeout)
	}
	c.netConn.SetWriteDeadline(deadline)
	if _, err := c.netConn.Write(line); err != nil {
		c.netConn.Close()
		return errClientNotReading
	}
	return nil
}

// addActiveRequests changes the number of requests in progress, when a request begins or ends.
func (c *serverConn) addActiveRequests(delta int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.activeRequestCount += delta
	c.activeRequestsChangedAt = time.Now()
}

// idleSince returns the time since which the connection has had no request in progress. It returns false if a request
// is in progress or the connection was evicted.
func (c *serverConn) idleSince() (t time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.activeRequestsChangedAt, c.activeRequestCount == 0 && !c.evicted
}

// cancelRequestsIfClosed reports whether the client has closed the connection. If the client has,
// cancelRequestsIfClosed cancels the requests of the connection.
func (c *serverConn) cancelRequestsIfClosed() bool {
	hungUpNow := socket.IsClosedByPeer(c.netConn)
	if hungUpNow {
		c.cancelRequests()
	}
	return hungUpNow
}

// lacksAccess reports whether the peer had no right when it connected. The server answers one request of a peer without
// access and then closes the connection.
func (c *serverConn) lacksAccess() bool { return !c.peer.Right.Covers(RightRead) }

// activeRequest is a request in progress. Only one goroutine at a time uses the value.
type activeRequest struct {
	request
	conn                *serverConn
	loggedJobIDs        []string      // ids of jobs in the parameters, for the log
	loggedSettingName   string        // name of a setting in the parameters, for the log
	bytesChargedToUser  int64         // bytes of the request line, plus those added by ChargeBytesToUser
	clientReadTimeout   time.Duration // how long the client may take to read the answer
	answerLine          []byte        // the answer; nil until it is ready
	unsentStreamPieces  []byte        // stream pieces that have not been sent yet
	streamStepHoldsSlot bool          // RunStreamStep holds a slot; sendStreamPiece then stores pieces and sends none

	// The next fields are resources that releaseResources releases.
	countsTowardsLimits bool           // the request counts towards the limits on the numbers of requests in progress
	releaseFuncsAtEnd   []func()       // functions that release resources at the end of the request
	decodingSlotClass   HeavyWorkClass // class of the slot for decoding the request
	releaseDecodingSlot func()         // releases the slot for decoding; nil if the request has none
}

type activeRequestKey struct{}

// activeRequestOf returns the request that ctx belongs to, or nil if ctx belongs to no request.
func activeRequestOf(ctx context.Context) *activeRequest {
	t, _ := ctx.Value(activeRequestKey{}).(*activeRequest)
	return t
}

func (t *activeRequest) releaseResources() {
	for _, release := range t.releaseFuncsAtEnd {
		release()
	}
	t.conn.addActiveRequests(-1)
	t.conn.fairConn.EndRequest(t.countsTowardsLimits, int(t.bytesChargedToUser)+len(t.answerLine)+
		len(t.unsentStreamPieces))
}

// acquireDecodingSlot waits for a slot, the permission to decode a long request. A request of at most
// uncountedBytesPerConn bytes needs no slot.
func (t *activeRequest) acquireDecodingSlot(ctx context.Context, userLimits *UserLimits, requestBytes int) error {
	if requestBytes <= uncountedBytesPerConn {
		return nil
	}
	t.decodingSlotClass = classLongRequestDecoding
	if requestBytes > largeRequestBytes {
		t.decodingSlotClass = classLargeRequest
	}
	r := newSlotRequest(ctx, t.decodingSlotClass)
	if err := userLimits.acquireSlot(ctx, r); err != nil {
		return err
	}
	t.releaseDecodingSlot = sync.OnceFunc(func() { userLimits.heavyWorkSlots.Release(r) })
	t.releaseFuncsAtEnd = append(t.releaseFuncsAtEnd, t.releaseDecodingSlot)
	if t.decodingSlotClass == classLargeRequest {
		timer := time.AfterFunc(maxLargeRequestSlotTime, t.releaseDecodingSlot)
		t.releaseFuncsAtEnd = append(t.releaseFuncsAtEnd, func() { timer.Stop() })
	}
	return nil
}

// finishDecoding forgets the parameters, which are part of the request line, so that their memory can be freed. It also
// releases the slot, unless the slot is for decoding and processing the request.
func (t *activeRequest) finishDecoding(params any) {
	t.params = nil
	t.loggedJobIDs, t.loggedSettingName = loggedIDsAndSetting(params)
	if t.decodingSlotClass == classLongRequestDecoding {
		t.releaseDecodingSlot()
	}
}

// storeUnsentAnswer stores the answer until it is sent. The answer counts towards the user's limit of bytes.
func (t *activeRequest) storeUnsentAnswer(line []byte) {
	t.conn.fairConn.ForceAddBytes(len(line) - len(t.answerLine))
	t.answerLine = line
}

// sendStreamPiece sends a piece of a stream to the client. During a stream step, which holds a slot, it only stores the
// piece. After the step, flushStreamPieces sends the stored pieces.
func (t *activeRequest) sendStreamPiece(streamPiece any) error {
	if t.unsentStreamPieces == nil {
		t.unsentStreamPieces = *streamBufferPool.Get().(*[]byte)
	}
	before := len(t.unsentStreamPieces)
	pieces, err := appendNotification(t.unsentStreamPieces, t.method, t.id, streamPiece)
	if err != nil {
		return err
	}
	t.unsentStreamPieces = pieces
	t.conn.fairConn.ForceAddBytes(len(pieces) - before)
	if t.streamStepHoldsSlot {
		return nil
	}
	return t.flushStreamPieces()
}

// flushStreamPieces sends the stream pieces that sendStreamPiece has stored.
func (t *activeRequest) flushStreamPieces() error {
	if len(t.unsentStreamPieces) == 0 {
		return nil
	}
	err := t.conn.sendLine(t.unsentStreamPieces, t.clientReadTimeout)
	t.conn.fairConn.ForceAddBytes(-len(t.unsentStreamPieces))
	if cap(t.unsentStreamPieces) <= maxPooledBufferBytes {
		streamBufferPool.Put(new(t.unsentStreamPieces[:0]))
	}
	t.unsentStreamPieces = nil
	return err
}

// streamBufferPool holds buffers for stream pieces, so that they can be reused. A stream has a buffer only while it
// has pieces to send.
var streamBufferPool = sync.Pool{New: func() any { return new([]byte) }}

// maxPooledBufferBytes is the maximum capacity, in bytes, of a buffer in streamBufferPool.
const maxPooledBufferBytes = 256 << 10
