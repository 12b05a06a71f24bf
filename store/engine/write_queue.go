package engine

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/writequeue"
)

// PriorityClass is the priority class of an operation.
type PriorityClass = writequeue.PriorityClass

const (
	UrgentClass = writequeue.UrgentClass
	PromptClass = writequeue.PromptClass
	NormalClass = writequeue.NormalClass
)

// queuedOperation is an operation that waits for its commit or is in one. If run returns a *queue.Error, the
// transaction is still committed with the other operations. So run must make all its checks before it writes. run may
// be called several times.
type queuedOperation struct {
	run           func(*Tx) error
	priorityClass PriorityClass
	uid           int // the caller, or queue.NoUserUID for the service itself
	resultChan    chan error
	runError      error
	operationForecast
	// mayUseWholeDiskReserve allows the operation to use the last part of the reserve when the disk is full. It is set for
	// removals, cancel and ApplyDueChanges, because these write little and free disk space or end jobs that use it.
	mayUseWholeDiskReserve bool
	freesSpace             bool // the operation removes rows or outputs, so the database may have free space afterwards
	readOnly               bool // the operation changes nothing; its caller may stop waiting when its context ends
}

// Owner implements writequeue.Op. It returns the operation's user and priority class.
func (o *queuedOperation) Owner() writequeue.OpOwner {
	return writequeue.OpOwner{UID: o.uid, Class: o.priorityClass}
}

// Do carries out an operation and waits for its commit. The end of ctx has an effect only before the
// operation is in the write queue: Do then returns an error. For operations that only read, use
// readWriterMemory.
func (e *Engine) RunAndCommit(ctx context.Context, class PriorityClass, run func(*Tx) error) error {
	return e.executeOperation(ctx, &queuedOperation{run: run, priorityClass: class})
}

// executeWithResult carries out an operation of a priority class, like Do, and returns the result of run. After an
// error, it returns the zero value.
func executeWithResult[T any](ctx context.Context, e *Engine, class PriorityClass, run func(*Tx) (T, error)) (T,
	error) {
	return doOpWithResult(ctx, e, &queuedOperation{priorityClass: class}, run)
}

// doOpWithResult carries out an operation that calls run, and returns the result of this call. After an error, it
// returns the zero value.
func doOpWithResult[T any](ctx context.Context, e *Engine, o *queuedOperation, run func(*Tx) (T, error)) (T, error) {
	var result, zero T // a running transaction may still write to result after doOpWithResult has returned an error
	o.run = func(t *Tx) (err error) {
		result, err = run(t)
		return err
	}
	if err := e.executeOperation(ctx, o); err != nil {
		return zero, err
	}
	return result, nil
}

// newRemovalOperation returns an operation that removes rows or outputs, and so frees space.
func newRemovalOperation(class PriorityClass) *queuedOperation {
	return &queuedOperation{priorityClass: class, mayUseWholeDiskReserve: true, freesSpace: true}
}

// readWriterMemory runs a function that only reads, but uses state in memory that only a transaction may use.
// It returns early if ctx ends, because a disk, a server or another program may block the transactions for
// long.
func readWriterMemory[T any](ctx context.Context, e *Engine, run func(*Tx) (T, error)) (T, error) {
	return doOpWithResult(ctx, e, &queuedOperation{priorityClass: PromptClass, readOnly: true}, run)
}

// executeOperation adds an operation to the write queue and waits until it is committed, together with others. While no
// other goroutine commits, the caller commits the waiting operations itself. See docs/decisions/0005.
func (e *Engine) executeOperation(ctx context.Context, o *queuedOperation) error {
	o.uid, o.resultChan = queue.UserIDFromContext(ctx), make(chan error, 1)
	if err := ctx.Err(); err != nil {
		return err
	}
	e.mu.Lock()
	err := e.failure
	if err == nil && e.isClosing {
		err = ErrClosed
	}
	e.mu.Unlock()
	if err == nil {
		err = e.waitingOps.Add(o) // if the engine is closed now, commitNextGroup refuses the operation
	}
	if err != nil {
		return err
	}
	var ctxEnded <-chan struct{}
	if o.readOnly {
		ctxEnded = ctx.Done()
	}
	for {
		select {
		case err := <-o.resultChan:
			if err == nil && o.freesSpace {
				e.diskSpace.OnSpaceFreed()
			}
			return err
		case <-ctxEnded:
			e.waitingOps.Withdraw(o)
			return ctx.Err()
		// No other goroutine is writing, so this one commits the waiting operations.
		case <-e.writerToken:
			if o.readOnly {
				go e.commitAndReleaseWriter() // Close waits until this goroutine has returned the token
				continue
			}
			e.commitAndReleaseWriter()
		}
	}
}

// commitAndReleaseWriter commits one group of waiting operations and gives up the right to write. The caller holds
// that right.
func (e *Engine) commitAndReleaseWriter() {
	e.commitNextGroup()
	e.writerToken <- struct{}{}
}

// RunBetweenTransactions takes the right to write and calls f once, outside of any transaction. Unlike Do, it never
// fails because too many operations wait. An error of f has no effect on the engine.
func (e *Engine) RunBetweenTransactions(ctx context.Context, f func() error) error {
	select {
	case <-e.writerToken:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { e.writerToken <- struct{}{} }()
	defer e.exitOnPanic()
	if err := ctx.Err(); err != nil {
		return err
	}
	if e.writesStopped {
		return cmp.Or(e.Err(), error(ErrClosed))
	}
	defer e.startCommitClock()()
	return f()
}

// RunAsWriter takes the right to write and calls f, even if the engine has failed or is closed.
func (e *Engine) RunAsWriter(f func()) {
	<-e.writerToken
	defer func() { e.writerToken <- struct{}{} }()
	defer e.exitOnPanic()
	f()
}

// exitOnPanic ends the program if the caller panics while it holds the right to write. Use it with defer. If
// the engine continued after such a panic, it could write an inconsistent state or report committed
// operations as refused.
func (e *Engine) exitOnPanic() {
	if p := recover(); p != nil {
		stack := debug.Stack()
		go panic(fmt.Sprintf("store: %v\n%s", p, stack))
		select {}
	}
}
