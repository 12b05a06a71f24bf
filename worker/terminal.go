package worker

import (
	"context"
	"errors"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// AwaitJobStart waits until the current attempt of a job is known to run, and returns the job. ok is false if
// this pool has not claimed the job, or if the attempt or ctx ends first.
func (p *Pool) AwaitJobStart(ctx context.Context, jobSeq int64) (j queue.Job, ok bool) {
	h := p.leaseOfJob(jobSeq)
	if h == nil || !p.awaitLeaseStart(ctx, h) {
		return j, false
	}
	return h.job, true // the field job never changes
}

// awaitLeaseStart waits until the attempt of a lease is known to run. It returns false if the attempt or ctx
// ends first.
func (p *Pool) awaitLeaseStart(ctx context.Context, h *lease) bool {
	p.mu.Lock()
	if !h.hasStarted() && h.runnerConn != nil {
		// makes the runner report the start immediately
		h.runnerConn.Send(&wire.ReportAttemptImmediately{Lease: h.wireLease()})
	}
	p.mu.Unlock()
	select {
	case <-h.startedSignal:
	case <-h.endStoredSignal:
	case <-ctx.Done():
	}
	return h.hasStarted()
}

// TypeTerminalInput writes data to the terminal of a job, if the attempt with the number attemptNumber (from 1) is
// running. The reply contains the number of bytes written and the modes of the terminal. The caller can write the
// remaining bytes after the job has read some input. ok is false if the attempt does not run, if it has no terminal, or
// if its runner is not connected. If its runner does not answer, the error names the runner.
func (p *Pool) TypeTerminalInput(ctx context.Context, jobSeq int64, attemptNumber int,
	data []byte) (reply wire.TypeInputReply, ok bool,
	err error) {
	h, conn := p.findRunningAttempt(jobSeq, attemptNumber)
	if conn == nil {
		return reply, false, nil
	}
	timeoutCtx, cancel := context.WithTimeout(ctx, livenessCheckTimeout)
	defer cancel()
	reply, err = conn.TypeInput(timeoutCtx, h.wireLease(), data)
	switch {
	case errors.Is(err, runner.ErrNoReply):
		return reply, false, nil
	case err != nil && ctx.Err() == nil:
		return reply, false, p.unresponsiveError(conn.HelloReply.RunnerPID, h)
	}
	return reply, err == nil, err
}

// ResizeTerminal sets the size of a job's terminal, if the attempt with the number attemptNumber is running. It returns
// false if the attempt does not run or its runner is not connected.
func (p *Pool) ResizeTerminal(jobSeq int64, attemptNumber, rows, cols int) bool {
	h, conn := p.findRunningAttempt(jobSeq, attemptNumber)
	if conn == nil {
		return false
	}
	conn.Send(&wire.ResizeTerminal{Lease: h.wireLease(), Rows: int64(rows), Cols: int64(cols)})
	return true
}

// findRunningAttempt returns the lease of a job and the connection to its runner, if the attempt with the number
// attemptNumber is running. If it is not running, both results are nil. If the runner is not connected, only the
// connection is nil.
func (p *Pool) findRunningAttempt(jobSeq int64, attemptNumber int) (*lease, *runnerConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.leases.byJobSeq[jobSeq]
	if h == nil || !h.hasStarted() || h.job.StartedAttempts+1 != attemptNumber {
		return nil, nil
	}
	return h, h.runnerConn
}
