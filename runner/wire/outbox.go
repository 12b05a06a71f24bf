package wire

import (
	"net"
	"sync"
)

// Outbox writes to a connection without blocking its callers. SendBytes, SendFrames and FlushNonBlocking write what the
// connection accepts immediately. Run, which needs a separate goroutine, writes the rest.
type Outbox struct {
	conn net.Conn
	wake chan struct{} // wakes Run

	mu          sync.Mutex
	unsentBytes []byte // bytes to be written; guarded by mu
	isWriting   bool   // a goroutine is writing without holding mu; guarded by mu
	isClosed    bool   // Close was called; guarded by mu
}

// NewOutbox returns the outbox of a connection.
func NewOutbox(c net.Conn) *Outbox { return &Outbox{conn: c, wake: make(chan struct{}, 1)} }

// AddBytes adds bytes to the outbox. The next call of SendBytes, SendFrames or FlushNonBlocking writes them.
func (o *Outbox) AddBytes(frameBytes []byte) {
	o.mu.Lock()
	o.unsentBytes = append(o.unsentBytes, frameBytes...)
	o.mu.Unlock()
}

// SendBytes writes the bytes that are in the outbox, and then b. It does not block.
func (o *Outbox) SendBytes(b []byte) {
	o.AddBytes(b)
	o.FlushNonBlocking()
}

// SendFrames encodes frames, adds them to the outbox, and writes the outbox without blocking. It returns the number of
// bytes that the connection did not accept and that Run writes later.
func (o *Outbox) SendFrames(frames ...Frame) (unsentByteCount int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range frames {
		o.unsentBytes = AppendFrame(o.unsentBytes, f)
	}
	o.flushLocked(writeNonBlocking)
	return len(o.unsentBytes)
}

// FlushNonBlocking writes the bytes that AddBytes has added. It does not block.
func (o *Outbox) FlushNonBlocking() {
	o.mu.Lock()
	o.flushLocked(writeNonBlocking)
	o.mu.Unlock()
}

// flushLocked passes the bytes in the outbox to the function write, which returns how many of them it wrote. Run writes
// the rest. If another goroutine is already writing, flushLocked leaves all bytes to that goroutine. The caller holds
// mu, which flushLocked unlocks during the write.
func (o *Outbox) flushLocked(write func(net.Conn, []byte) int) {
	for !o.isWriting && !o.isClosed && len(o.unsentBytes) > 0 {
		data := o.unsentBytes
		o.unsentBytes, o.isWriting = nil, true
		o.mu.Unlock()
		n := write(o.conn, data)
		o.mu.Lock()
		o.isWriting = false
		if n < len(data) {
			o.unsentBytes = append(data[n:len(data):len(data)], o.unsentBytes...)
			SendWakeSignal(o.wake)
			return
		}
	}
}

// Run writes the bytes that the connection did not accept immediately. It returns after Close.
func (o *Outbox) Run() {
	for range o.wake {
		o.mu.Lock()
		o.flushLocked(func(c net.Conn, b []byte) int {
			if _, err := c.Write(b); err != nil {
				c.Close() // so that the goroutine that reads the connection gets an error
			}
			return len(b)
		})
		closed := o.isClosed
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
	if o.isClosed {
		return false
	}
	o.isClosed = true
	o.conn.Close()
	SendWakeSignal(o.wake)
	return true
}

// SendWakeSignal sends a signal to the channel c of capacity 1, to wake the goroutine that receives from it. If c
// already contains a signal, SendWakeSignal does nothing.
func SendWakeSignal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a signal is already in the channel
	}
}
