package runner

import (
	"context"
	"slices"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/internal/session"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// patience returns how long to wait after SIGKILL before the remaining processes of a tree are
// considered unkillable.
func patience() time.Duration {
	if failpoint.On("impatient") {
		return 300 * time.Millisecond
	}
	return 30 * time.Second
}

// StopGrace returns the longest time that a command gets between SIGTERM and SIGKILL when the service
// or its runner ends. The user who enqueued a job sets how long its command may take to end, but this
// must not delay the shutdown of the machine.
func StopGrace() time.Duration {
	if failpoint.On("impatient") {
		return 300 * time.Millisecond
	}
	return 30 * time.Second
}

// GraceOf returns how long a command gets between SIGTERM and SIGKILL when the context of its service
// or runner has ended. The time is shorter than StopGrace if the context ended because the user's
// session ends, which leaves less time.
func GraceOf(ended context.Context) time.Duration {
	if session.Ends(ended) {
		return session.Grace
	}
	return StopGrace()
}

// awaitStuck keeps a worker and its slot in use until the processes that outlive SIGKILL have ended, or
// the runner ends.
func (s *server) awaitStuck(w *process.Worker, a *attempt) {
	w.AwaitStuck(s.done)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuckAttempts = slices.DeleteFunc(s.stuckAttempts, func(k wire.Attempt) bool { return k.Lease == lease(a) })
	s.slots[a.slot]--
	s.wakeSlotWaiters()
	s.send(&wire.Stuck{Attempts: s.stuckAttempts}, true)
}
