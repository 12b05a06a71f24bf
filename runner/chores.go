package runner

import "sync"

// chores is a queue of disk operations that one goroutine executes one after the other. They can take
// long, so they must not run while the server's mutex is held. add may be called from any goroutine,
// with or without that mutex.
type chores struct {
	bell chan struct{}

	mu   sync.Mutex
	list []func() // guarded by mu
}

func (c *chores) add(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, f)
	poke(c.bell)
}

// run executes operations until end is closed, and then the remaining ones.
func (c *chores) run(end <-chan struct{}) {
	for more := true; more; {
		select {
		case <-c.bell:
		case <-end:
			more = false
		}
		for f := c.next(); f != nil; f = c.next() {
			f()
		}
	}
}

func (c *chores) next() func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list) == 0 {
		c.list = nil
		return nil
	}
	f := c.list[0]
	c.list = c.list[1:]
	return f
}
