package daemon

import (
	"slices"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// addStuckLocked keeps the slot of an ended attempt in use, and reports the attempt to the service. pid is
// a process of the attempt that SIGKILL did not end.
func (s *server) addStuckLocked(a *attempt, pid int) {
	s.slots.useCounts[a.slot]++
	stuck := wireAttempt(a)
	stuck.PID = int64(pid)
	s.stuckAttempts = append(s.stuckAttempts, stuck)
	s.sendLocked(&wire.StuckReport{Attempts: s.stuckAttempts}, true)
}

// awaitStuck keeps a worker and its slot in use until the processes that SIGKILL did not end are gone, or
// until the runner ends.
func (s *server) awaitStuck(w *process.Worker, a *attempt) {
	w.AwaitStuck(s.life.done)
	s.mu.Lock()
	s.stuckAttempts = slices.DeleteFunc(s.stuckAttempts, func(k wire.Attempt) bool { return k.Lease == leaseOf(a) })
	s.releaseSlotUseLocked(a)
	s.sendLocked(&wire.StuckReport{Attempts: s.stuckAttempts}, true)
	s.mu.Unlock()
}
