package daemon

import (
	"sync"

	"github.com/queuectl/queuectl/runner/wire"
)

// diskQueue is a queue of disk operations that one goroutine executes one after the other. A disk
// operation can take long, so it must not run while the server's mutex is held. add may be called from
// any goroutine, with or without that mutex.
type diskQueue struct {
	wake chan struct{}

	mu  sync.Mutex
	ops []func() // guarded by mu
}

func (c *diskQueue) add(f func()) {
	c.mu.Lock()
	c.ops = append(c.ops, f)
	c.mu.Unlock()
	wire.SignalWake(c.wake)
}

// run executes operations until end is closed, and then the operations that remain.
func (c *diskQueue) run(end <-chan struct{}) {
	for more := true; more; {
		select {
		case <-c.wake:
		case <-end:
			more = false
		}
		for f := c.next(); f != nil; f = c.next() {
			f()
		}
	}
}

func (c *diskQueue) next() func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ops) == 0 {
		c.ops = nil
		return nil
	}
	f := c.ops[0]
	c.ops = c.ops[1:]
	return f
}
