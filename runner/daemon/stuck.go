package daemon

import (
	"slices"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

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
