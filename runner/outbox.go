package runner

import (
	"net"
	"sync"
)

// outbox writes to a connection without blocking its callers. send and flushNow immediately write the
// bytes that the socket accepts without blocking. The method run writes the rest.
type outbox struct {
	net  net.Conn
	wake chan struct{}

	mu      sync.Mutex
	unsent  []byte // bytes to be written; guarded by mu
	spare   []byte // empty buffer that replaces unsent during a write; guarded by mu
	writing bool   // a goroutine is writing without holding mu; guarded by mu
	closed  bool   // close was called; guarded by mu
}

func newOutbox(c net.Conn) *outbox { return &outbox{net: c, wake: make(chan struct{}, 1)} }

// gather adds bytes for the next flush.
func (o *outbox) gather(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unsent = append(o.unsent, b...)
}

// send writes the gathered bytes, then b. It does not block.
func (o *outbox) send(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unsent = append(o.unsent, b...)
	o.flush(writeNow)
}

// flushNow writes the gathered bytes. It does not block.
func (o *outbox) flushNow() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flush(writeNow)
}

// flush calls write until all gathered bytes are written. If write accepts only some of the bytes,
// flush leaves the rest to the method run. If another goroutine is writing, that goroutine writes these
// bytes too. The caller holds mu; flush releases it during a write.
func (o *outbox) flush(write func(net.Conn, []byte) int) {
	for !o.writing && !o.closed && len(o.unsent) > 0 {
		data := o.unsent
		o.unsent, o.spare, o.writing = o.spare, nil, true
		o.mu.Unlock()
		n := write(o.net, data)
		o.mu.Lock()
		o.writing = false
		if n < len(data) {
			o.unsent = append(data[n:len(data):len(data)], o.unsent...)
			wakeUp(o.wake)
			return
		}
		if cap(data) <= 1<<20 {
			o.spare = data[:0]
		}
	}
}

// run writes the bytes that the socket did not accept immediately. It returns after close.
func (o *outbox) run() {
	for range o.wake {
		o.mu.Lock()
		o.flush(func(c net.Conn, b []byte) int {
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

// close ends run and closes the connection. Only the first call returns true.
func (o *outbox) close() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	o.closed = true
	o.net.Close()
	wakeUp(o.wake)
	return true
}

func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a signal is pending already
	}
}
