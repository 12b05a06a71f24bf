package runner

import "sync"

// chores are carried out one after the other by one goroutine: what waits for a disk,
// and must not make those wait who need the server's mutex. add may be called from any
// goroutine, with the mutex too.
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

// run carries out chores until end is closed, and then those that are left.
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
