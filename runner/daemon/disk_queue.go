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

func (q *diskQueue) add(f func()) {
	q.mu.Lock()
	q.ops = append(q.ops, f)
	q.mu.Unlock()
	wire.SignalWake(q.wake)
}

// run executes operations until end is closed, and then the operations that remain.
func (q *diskQueue) run(end <-chan struct{}) {
	for more := true; more; {
		select {
		case <-q.wake:
		case <-end:
			more = false
		}
		for f := q.next(); f != nil; f = q.next() {
			f()
		}
	}
}

func (q *diskQueue) next() func() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.ops) == 0 {
		q.ops = nil
		return nil
	}
	f := q.ops[0]
	q.ops = q.ops[1:]
	return f
}
