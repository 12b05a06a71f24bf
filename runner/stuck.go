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

// patience is how long after SIGKILL a tree is given up as unkillable.
func patience() time.Duration {
	if failpoint.On("impatient") {
		return 300 * time.Millisecond
	}
	return 30 * time.Second
}

// StopGrace is the most time that a command gets between SIGTERM and SIGKILL when the
// service or its runner ends: it is for whoever handed it in to say how much it needs, but
// not for how long the machine cannot be shut down.
func StopGrace() time.Duration {
	if failpoint.On("impatient") {
		return 300 * time.Millisecond
	}
	return 30 * time.Second
}

// GraceOf is the same of a service or runner whose context has ended, which may have been for a reason that leaves
// less time.
func GraceOf(ended context.Context) time.Duration {
	if session.Ends(ended) {
		return session.Grace
	}
	return StopGrace()
}

// linger keeps a worker, and its slot, until what it could not kill is gone or the
// runner ends.
func (s *server) linger(w *process.Worker, a *attempt) {
	w.Linger(s.ended)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck = slices.DeleteFunc(s.stuck, func(k wire.Attempt) bool { return k.Lease == lease(a) })
	s.slots[a.slot]--
	s.slotFreed()
	s.send(&wire.Stuck{Attempts: s.stuck}, true)
}
