package runner

import (
	"net"
	"sync"
)

// outbox writes to a connection without blocking its callers. It immediately writes the bytes that the
// socket accepts without blocking. run writes the rest.
type outbox struct {
	net  net.Conn
	wake chan struct{}

	mu   sync.Mutex
	out  []byte // bytes to be written; guarded by mu
	next []byte // empty buffer that replaces out during a write; guarded by mu
	busy bool   // a goroutine is writing without holding mu; guarded by mu
	gone bool   // closed; guarded by mu
}

func newOutbox(c net.Conn) *outbox { return &outbox{net: c, wake: make(chan struct{}, 1)} }

// gather adds bytes for the next flush.
func (o *outbox) gather(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.out = append(o.out, b...)
}

// send writes the gathered bytes, then b.
func (o *outbox) send(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.out = append(o.out, b...)
	o.flush(writeNow)
}

// flushNow writes the gathered bytes.
func (o *outbox) flushNow() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flush(writeNow)
}

// flush calls write until all gathered bytes are written. If write takes only a part, flush leaves the
// rest to run. If another goroutine is writing, that goroutine writes these bytes too. The caller holds
// mu; flush releases it during a write.
func (o *outbox) flush(write func(net.Conn, []byte) int) {
	for !o.busy && !o.gone && len(o.out) > 0 {
		out := o.out
		o.out, o.next, o.busy = o.next, nil, true
		o.mu.Unlock()
		n := write(o.net, out)
		o.mu.Lock()
		o.busy = false
		if n < len(out) {
			o.out = append(out[n:len(out):len(out)], o.out...)
			poke(o.wake)
			return
		}
		if cap(out) <= 1<<20 {
			o.next = out[:0]
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
		gone := o.gone
		o.mu.Unlock()
		if gone {
			return
		}
	}
}

// close ends run and closes the connection. Only the first call returns true.
func (o *outbox) close() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone {
		return false
	}
	o.gone = true
	o.net.Close()
	poke(o.wake)
	return true
}

func poke(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default: // a signal is pending already
	}
}
