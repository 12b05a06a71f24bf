package handlers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// Attach implements control.API. See docs/decisions/0062.
func (h *API) Attach(ctx context.Context, p control.Attach) (control.AttachResult, error) {
	peer := control.PeerFrom(ctx)
	j, err := h.findJobFor(ctx, "attach", p.ID)
	if err != nil {
		return control.AttachResult{}, err
	}
	if !j.TTY {
		return control.AttachResult{}, queue.Errorf(queue.CodeWrongState,
			"job %s has no terminal; to start a job that has one: queuectl run --tty", j.ID)
	}
	running, err := h.startedAttempt(ctx, &j, &p)
	if err != nil {
		return control.AttachResult{}, err
	}
	if err := h.Guard.CheckMayTypeIntoTerminal(&peer, &running); err != nil {
		return control.AttachResult{}, err
	}
	joined := control.AttachResult{Attempt: running.StartedAttempts + 1}
	if h.terminalClients.addIfNew(terminalClient{running.Seq, joined.Attempt, peer.UID, peer.PID}) {
		if err := h.Guard.Audit(ctx, "attach", fmt.Sprintf("the terminal of attempt %d", joined.Attempt),
			&running); err != nil {
			return control.AttachResult{}, err
		}
	}
	errEnded := queue.Errorf(queue.CodeWrongState,
		"attempt %d of job %s has just ended, or its runner is not connected; try again", joined.Attempt, j.ID)
	if p.Rows != 0 && !h.Pool.Resize(running.Seq, joined.Attempt, p.Rows, p.Cols) {
		return joined, errEnded
	}
	data := append([]byte(p.Text), p.Base64...)
	if len(data) == 0 && !p.Controls {
		return joined, nil
	}
	typed, ok, err := h.Pool.TypeInput(ctx, running.Seq, joined.Attempt, data)
	if err == nil && !ok {
		err = errEnded
	}
	joined.Written = int(typed.WrittenBytes)
	if p.Controls {
		joined.Controls = typed.ModeControls
	}
	return joined, err
}

// startReportTimeout is how long Attach, if it does not wait for the job, gives the runner to report that the
// attempt has started.
const startReportTimeout = 100 * time.Millisecond

// startedAttempt returns the job once the requested attempt runs. If p.Wait is false and the attempt does not
// run yet, startedAttempt returns an error.
func (h *API) startedAttempt(ctx context.Context, j *queue.Job, p *control.Attach) (startedJob queue.Job, err error) {
	if p.Wait {
		defer h.Pool.WatchEnd(j.Seq)()
	}
	watching := h.Store.Watch([]int64{j.Seq})
	defer watching.Stop()
	for {
		// Get this channel before the job's state is read. Otherwise a runner that connects in between is
		// missed.
		connected := h.Pool.RunnerConnected()
		if *j, err = h.rereadCompact(ctx, j); err != nil {
			return startedJob, err
		}
		if h.Cluster != nil && j.State == queue.Processing {
			if name := h.AllNodes.NodeNameOf(ctx, j.Seq); name != h.Node {
				return startedJob, queue.Errorf(queue.CodeUnsupported, "job %s runs on node %s; attach to its terminal there", j.ID,
					name)
			}
		}
		timeoutCtx, cancel := ctx, func() {}
		if !p.Wait {
			timeoutCtx, cancel = context.WithTimeout(ctx, startReportTimeout)
		}
		running, ok := h.Pool.AwaitStart(timeoutCtx, j.Seq)
		cancel()
		switch {
		case ok && (p.Attempt == 0 || p.Attempt == running.StartedAttempts+1):
			return running, nil
		case ok && p.Attempt <= running.StartedAttempts, p.Attempt > 0 && p.Attempt <= j.StartedAttempts:
			return running, queue.Errorf(queue.CodeWrongState, "attempt %d of job %s has ended", p.Attempt, j.ID)
		case j.State.Ended():
			return running, queue.Errorf(queue.CodeWrongState,
				"job %s is %s, and its terminal is closed; see its output with: queuectl logs %[1]s", j.ID, j.State)
		case !p.Wait:
			return running, queue.Errorf(queue.CodeWrongState, "job %s is not running, so it has no terminal yet", j.ID)
		}
		select {
		case <-watching.C:
		case <-connected:
		case <-ctx.Done():
			return running, ctx.Err()
		}
	}
}

// terminalClients remembers which processes have attached to which terminals, so that the audit log gets only
// one event per process and terminal. Its methods are safe for concurrent use.
type terminalClients struct {
	mu          sync.Mutex
	seenClients map[terminalClient]bool // guarded by mu
}

// terminalClient is a user's process that is attached to the terminal of an attempt.
type terminalClient struct {
	seq      int64
	attempt  int
	uid, pid int
}

// maxTerminalClients is the maximum number of remembered processes. Beyond it, all are forgotten, and each
// process causes one more audit event when it next types text.
const maxTerminalClients = 4096

// addIfNew records an attached process and reports whether it is new.
func (t *terminalClients) addIfNew(client terminalClient) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seenClients[client] {
		return false
	}
	if t.seenClients == nil || len(t.seenClients) >= maxTerminalClients {
		t.seenClients = map[terminalClient]bool{}
	}
	t.seenClients[client] = true
	return true
}
