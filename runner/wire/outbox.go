package wire

import (
	"net"
	"sync"
)

// Outbox writes to a connection without blocking its callers. Send and FlushNow immediately write the
// bytes that the socket accepts without blocking. The method Run writes the rest.
type Outbox struct {
	conn net.Conn
	wake chan struct{}

	mu      sync.Mutex
	unsent  []byte // bytes to be written; guarded by mu
	writing bool   // a goroutine is writing without holding mu; guarded by mu
	closed  bool   // Close was called; guarded by mu
}

// NewOutbox returns the outbox of a connection.
func NewOutbox(c net.Conn) *Outbox { return &Outbox{conn: c, wake: make(chan struct{}, 1)} }

// Buffer adds bytes for the next flush.
func (o *Outbox) Buffer(b []byte) {
	o.mu.Lock()
	o.unsent = append(o.unsent, b...)
	o.mu.Unlock()
}

// Send writes the gathered bytes, then b. It does not block.
func (o *Outbox) Send(b []byte) {
	o.Buffer(b)
	o.FlushNow()
}

// SendFrames sends frames together and in order, as Send does. It returns how many bytes are still to be
// written.
func (o *Outbox) SendFrames(frames ...Frame) (unsent int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range frames {
		o.unsent = Append(o.unsent, f)
	}
	o.flushLocked(writeNow)
	return len(o.unsent)
}

// FlushNow writes the gathered bytes. It does not block.
func (o *Outbox) FlushNow() {
	o.mu.Lock()
	o.flushLocked(writeNow)
	o.mu.Unlock()
}

// flushLocked calls write until all gathered bytes are written. If write accepts only some of the
// bytes, flushLocked leaves the rest to the method Run. If another goroutine is already writing,
// that goroutine also writes the new bytes. The caller holds mu; flushLocked releases it during a
// write.
func (o *Outbox) flushLocked(write func(net.Conn, []byte) int) {
	for !o.writing && !o.closed && len(o.unsent) > 0 {
		data := o.unsent
		o.unsent, o.writing = nil, true
		o.mu.Unlock()
		n := write(o.conn, data)
		o.mu.Lock()
		o.writing = false
		if n < len(data) {
			o.unsent = append(data[n:len(data):len(data)], o.unsent...)
			SignalWake(o.wake)
			return
		}
	}
}

// Run writes the bytes that the socket did not accept immediately. It returns after Close.
func (o *Outbox) Run() {
	for range o.wake {
		o.mu.Lock()
		o.flushLocked(func(c net.Conn, b []byte) int {
			if _, err := c.Write(b); err != nil {
				c.Close() // the goroutine that reads the connection gets the error
			}
			return len(b)
		})
		closed := o.closed
		o.mu.Unlock()
		if closed {
			return
		}
	}
}

// Close ends Run and closes the connection. Only the first call returns true.
func (o *Outbox) Close() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	o.closed = true
	o.conn.Close()
	SignalWake(o.wake)
	return true
}

// SignalWake makes the goroutine that reads from a channel of capacity 1 run. A second signal is dropped.
func SignalWake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a signal is pending already
	}
}
