package daemon

import (
	"sync"

	"github.com/queuectl/queuectl/runner/wire"
)

// diskOperationQueue is a queue of disk operations. One goroutine executes them one after the other. A disk operation
// can take long, so it must not run while the server's mutex is held. Any goroutine may add an operation, with
// or without this mutex.
type diskOperationQueue struct {
	wake chan struct{}

	mu                sync.Mutex
	pendingOperations []func() // guarded by mu
}

func (q *diskOperationQueue) addOperation(operation func()) {
	q.mu.Lock()
	q.pendingOperations = append(q.pendingOperations, operation)
	q.mu.Unlock()
	wire.SendWakeSignal(q.wake)
}

// runOperations executes the queued operations until done is closed. It then executes those that are still queued, and
// returns.
func (q *diskOperationQueue) runOperations(done <-chan struct{}) {
	for more := true; more; {
		select {
		case <-q.wake:
		case <-done:
			more = false
		}
		for f := q.takeNextOperation(); f != nil; f = q.takeNextOperation() {
			f()
		}
	}
}

// takeNextOperation removes the first operation from the queue and returns it, or nil if the queue is empty.
func (q *diskOperationQueue) takeNextOperation() func() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pendingOperations) == 0 {
		q.pendingOperations = nil
		return nil
	}
	f := q.pendingOperations[0]
	q.pendingOperations = q.pendingOperations[1:]
	return f
}
