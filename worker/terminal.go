package worker

import (
	"context"
	"errors"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// AwaitStart waits until the current attempt of a job is known to run, and returns the job. ok is false if
// this pool has not claimed the job, or if the attempt or ctx ends first.
func (p *Pool) AwaitStart(ctx context.Context, seq int64) (j queue.Job, ok bool) {
	p.mu.Lock()
	h := p.leases.bySeq[seq]
	p.mu.Unlock()
	if h == nil || !p.awaitStart(ctx, h) {
		return j, false
	}
	return h.job, true // the field job never changes
}

// awaitStart waits until the attempt of a lease is known to run. It returns false if the attempt or ctx
// ends first.
func (p *Pool) awaitStart(ctx context.Context, h *lease) bool {
	p.mu.Lock()
	if !h.hasStarted() && h.conn != nil {
		h.conn.Send(&wire.ReportImmediately{Lease: h.wireLease()}) // makes the runner report the start immediately
	}
	p.mu.Unlock()
	select {
	case <-h.startSignal:
	case <-h.storedSignal:
	case <-ctx.Done():
	}
	return h.hasStarted()
}

// TypeInput writes data to the terminal of a job, if the attempt with this number (from 1) is running. The
// result says how many bytes were written and which modes the terminal has. The caller can write the
// remaining bytes after the job has read some input. ok is false if the attempt does not run, if it has no
// terminal, or if its runner is not connected. If its runner does not answer, the error names the runner.
func (p *Pool) TypeInput(ctx context.Context, seq int64, attempt int, data []byte) (t wire.TypeInputReply, ok bool,
	err error) {
	h, conn := p.runningAttempt(seq, attempt)
	if conn == nil {
		return t, false, nil
	}
	timeoutCtx, cancel := context.WithTimeout(ctx, livenessTimeout)
	defer cancel()
	t, err = conn.TypeInput(timeoutCtx, h.wireLease(), data)
	switch {
	case errors.Is(err, runner.ErrNoReply):
		return t, false, nil
	case err != nil && ctx.Err() == nil:
		return t, false, p.unresponsiveError(conn.HelloReply.PID, h)
	}
	return t, err == nil, err
}

// Resize sets the size of a job's terminal, if the attempt with this number is running. It returns false if
// the attempt does not run or its runner is not connected.
func (p *Pool) Resize(seq int64, attempt, rows, cols int) bool {
	h, conn := p.runningAttempt(seq, attempt)
	if conn == nil {
		return false
	}
	conn.Send(&wire.Resize{Lease: h.wireLease(), Rows: int64(rows), Cols: int64(cols)})
	return true
}

// runningAttempt returns the lease of a job and the connection to its runner, if the attempt with this number
// is running. Otherwise both are nil. Only the connection is nil if the runner is not connected.
func (p *Pool) runningAttempt(seq int64, attempt int) (*lease, *runnerConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.leases.bySeq[seq]
	if h == nil || !h.hasStarted() || h.job.StartedAttempts+1 != attempt {
		return nil, nil
	}
	return h, h.conn
}
