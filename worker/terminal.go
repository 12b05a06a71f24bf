package worker

import (
	"context"
	"errors"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// Started waits until the attempt that is held of a job is known to run, and returns the job
// as it runs. It is not ok if none is held, or that ended first, or ctx did.
func (p *Pool) Started(ctx context.Context, seq int64) (j queue.Job, ok bool) {
	p.mu.Lock()
	h := p.leases.bySeq[seq]
	running := h != nil && h.running
	if h != nil && !running && h.conn != nil {
		h.conn.Send(&wire.Watch{Lease: h.lease()}) // its start is told at once then
	}
	p.mu.Unlock()
	if h == nil {
		return j, false
	}
	if !running {
		select {
		case <-h.started:
		case <-h.done:
			return j, false
		case <-ctx.Done():
			return j, false
		}
	}
	return h.job, true // which does not change while it is held
}

// Type writes to the terminal of an attempt of a job, by number, and says how many of the
// bytes were taken (there is room for the rest once the job has read some) and which modes the
// terminal has. ok is false if that attempt does not run, has no terminal, or its runner is not
// connected now. A runner that does not answer is an error that names it.
func (p *Pool) Type(ctx context.Context, seq int64, attempt int, data []byte) (t wire.Typed, ok bool, err error) {
	h, conn := p.runs(seq, attempt)
	if conn == nil {
		return t, false, nil
	}
	within, cancel := context.WithTimeout(ctx, aliveWithin)
	defer cancel()
	t, err = conn.Type(within, h.lease(), data)
	switch {
	case errors.Is(err, runner.ErrGone):
		return t, false, nil
	case err != nil && ctx.Err() == nil:
		return t, false, p.silence(conn.Reply.PID, h)
	}
	return t, err == nil, err
}

// Resize gives the terminal of an attempt of a job another size. It reports whether that
// attempt runs, and its runner is connected.
func (p *Pool) Resize(seq int64, attempt, rows, cols int) bool {
	h, conn := p.runs(seq, attempt)
	if conn == nil {
		return false
	}
	conn.Send(&wire.Resize{Lease: h.lease(), Rows: int64(rows), Cols: int64(cols)})
	return true
}

// runs is the lease of an attempt of a job, by number, and the runner that runs it; nil if it
// does not run, or its runner is not connected.
func (p *Pool) runs(seq int64, attempt int) (*leaseState, *runnerConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.leases.bySeq[seq]
	if h == nil || !h.running || h.job.Runs+1 != attempt {
		return nil, nil
	}
	return h, h.conn
}
