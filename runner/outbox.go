package runner

import (
	"net"
	"sync"
)

// outbox writes to a connection without ever making its callers wait: what the
// socket takes goes at once, the rest by run.
type outbox struct {
	net  net.Conn
	wake chan struct{}

	mu   sync.Mutex
	out  []byte // gathered; guarded by mu
	next []byte // what out will be next; guarded by mu
	busy bool   // somebody writes, without mu; guarded by mu
	gone bool   // guarded by mu
}

func newOutbox(c net.Conn) *outbox { return &outbox{net: c, wake: make(chan struct{}, 1)} }

// gather keeps bytes for the next flush.
func (o *outbox) gather(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.out = append(o.out, b...)
}

// send writes bytes after all that is gathered.
func (o *outbox) send(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.out = append(o.out, b...)
	o.flush(writeNow)
}

// flushNow writes what is gathered.
func (o *outbox) flushNow() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flush(writeNow)
}

// flush writes what is gathered, until there is none or write takes less than
// all, which is left to run. If somebody writes already, he does. The caller
// holds mu, which is free during the write.
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

// run writes what the socket did not take at once, until close.
func (o *outbox) run() {
	for range o.wake {
		o.mu.Lock()
		o.flush(func(c net.Conn, b []byte) int {
			if _, err := c.Write(b); err != nil {
				c.Close() // whoever reads sees it
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

// close ends run and the connection; only the first call reports true.
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
	default: // it is rung already
	}
}
