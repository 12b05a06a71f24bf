package daemon

import (
	"sync"

	"github.com/queuectl/queuectl/runner/wire"
)

// diskQueue is a queue of disk operations. One goroutine executes them one after the other. A disk operation
// can take long, so it must not run while the server's mutex is held. Any goroutine may add an operation, with
// or without this mutex.
type diskQueue struct {
	wake chan struct{}

	mu  sync.Mutex
	ops []func() // guarded by mu
}

func (q *diskQueue) add(operation func()) {
	q.mu.Lock()
	q.ops = append(q.ops, operation)
	q.mu.Unlock()
	wire.Wake(q.wake)
}

// run executes the queued operations until done is closed. It then executes those that are still queued, and
// returns.
func (q *diskQueue) run(done <-chan struct{}) {
	for more := true; more; {
		select {
		case <-q.wake:
		case <-done:
			more = false
		}
		for f := q.next(); f != nil; f = q.next() {
			f()
		}
	}
}

// next removes the first operation from the queue and returns it, or nil if the queue is empty.
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
