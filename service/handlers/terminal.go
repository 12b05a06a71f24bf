package handlers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// AttachTerminal implements control.API. See docs/decisions/0062.
func (h *API) AttachTerminal(ctx context.Context, p control.AttachTerminalParams) (result control.AttachTerminalResult,
	err error) {
	peer := control.PeerFrom(ctx)
	j, err := h.findJobForMethod(ctx, "attach", p.ID)
	if err != nil {
		return result, err
	}
	if !j.TTY {
		return result, queue.Errorf(queue.CodeWrongState,
			"job %s has no terminal; to start a job that has one: queuectl run --tty", j.ID)
	}
	running, err := h.awaitStartedAttempt(ctx, &j, &p)
	if err != nil {
		return result, err
	}
	if err := h.Guard.CheckMayTypeIntoTerminal(&peer, &running); err != nil {
		return result, err
	}
	result.Attempt = running.StartedAttempts + 1
	if h.terminalClients.addIfNew(terminalClient{running.Seq, result.Attempt, peer.UID, peer.PID}) {
		if err := h.Guard.RecordAudit(ctx, "attach", fmt.Sprintf("the terminal of attempt %d", result.Attempt),
			&running); err != nil {
			return result, err
		}
	}
	errEnded := queue.Errorf(queue.CodeWrongState,
		"attempt %d of job %s has just ended, or its runner is not connected; try again", result.Attempt, j.ID)
	if p.TerminalRows != 0 && !h.Pool.ResizeTerminal(running.Seq, result.Attempt, p.TerminalRows, p.TerminalCols) {
		return result, errEnded
	}
	data := append([]byte(p.TypedText), p.TypedBytes...)
	if len(data) == 0 && !p.WantControlSequences {
		return result, nil
	}
	typed, ok, err := h.Pool.TypeTerminalInput(ctx, running.Seq, result.Attempt, data)
	if err == nil && !ok {
		err = errEnded
	}
	result.AcceptedBytes = int(typed.WrittenBytes)
	if p.WantControlSequences {
		result.ControlSequences = typed.TerminalModeControls
	}
	return result, err
}

// attemptStartReportTimeout limits how long AttachTerminal waits for the runner's report that the attempt has started,
// if the request does not say to wait for the start.
const attemptStartReportTimeout = 100 * time.Millisecond

// awaitStartedAttempt returns the job once the requested attempt runs. If p.WaitForStart is false and the attempt does
// not run yet, awaitStartedAttempt returns an error.
func (h *API) awaitStartedAttempt(ctx context.Context, j *queue.Job,
	p *control.AttachTerminalParams) (startedJob queue.Job,
	err error) {
	if p.WaitForStart {
		defer h.Pool.WatchJobEnd(j.Seq)()
	}
	watching := h.Store.WatchJobs([]int64{j.Seq})
	defer watching.Stop()
	for {
		// Get this channel before the job's state is read. Otherwise the loop would miss a runner that connects between the
		// two.
		connected := h.Pool.RunnerConnectedSignal()
		if *j, err = h.rereadCompactJob(ctx, j); err != nil {
			return startedJob, err
		}
		if h.Cluster != nil && j.State == queue.Processing {
			if name := h.NodeRegistry.LastNodeNameOfJob(ctx, j.Seq); name != h.NodeName {
				return startedJob, queue.Errorf(queue.CodeUnsupported, "job %s runs on node %s; attach to its terminal there", j.ID,
					name)
			}
		}
		timeoutCtx, cancel := ctx, func() {}
		if !p.WaitForStart {
			timeoutCtx, cancel = context.WithTimeout(ctx, attemptStartReportTimeout)
		}
		running, ok := h.Pool.AwaitJobStart(timeoutCtx, j.Seq)
		cancel()
		switch {
		case ok && (p.Attempt == 0 || p.Attempt == running.StartedAttempts+1):
			return running, nil
		case ok && p.Attempt <= running.StartedAttempts, p.Attempt > 0 && p.Attempt <= j.StartedAttempts:
			return running, queue.Errorf(queue.CodeWrongState, "attempt %d of job %s has ended", p.Attempt, j.ID)
		case j.State.HasEnded():
			return running, queue.Errorf(queue.CodeWrongState,
				"job %s is %s, and its terminal is closed; see its output with: queuectl logs %[1]s", j.ID, j.State)
		case !p.WaitForStart:
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
	mu             sync.Mutex
	auditedClients map[terminalClient]bool // guarded by mu
}

// terminalClient is a user's process that is attached to the terminal of an attempt.
type terminalClient struct {
	jobSeq        int64
	attemptNumber int
	uid, pid      int
}

// maxRememberedTerminalClients is the maximum number of remembered processes. If it is exceeded, all processes are
// forgotten. Each process then causes one more audit event when it next types text.
const maxRememberedTerminalClients = 4096

// addIfNew records an attached process and reports whether it is new.
func (t *terminalClients) addIfNew(client terminalClient) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.auditedClients[client] {
		return false
	}
	if t.auditedClients == nil || len(t.auditedClients) >= maxRememberedTerminalClients {
		t.auditedClients = map[terminalClient]bool{}
	}
	t.auditedClients[client] = true
	return true
}
