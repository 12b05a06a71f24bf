package daemon

import (
	"slices"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// addStuckLocked records that an ended attempt still has processes that SIGKILL did not end. pid is one of
// them. The attempt's slot in the running table stays in use. addStuckLocked sends the service the list of
// all such attempts.
func (s *server) addStuckLocked(a *attempt, pid int) {
	s.slots.useCounts[a.slot]++
	stuck := wireAttempt(a)
	stuck.PID = int64(pid)
	s.stuckAttempts = append(s.stuckAttempts, stuck)
	s.sendLocked(&wire.StuckReport{Attempts: s.stuckAttempts}, true)
}

// awaitStuck waits until the processes of the attempt that SIGKILL did not end are gone, or until the runner
// ends. Until then, no other attempt can use the worker or the attempt's slot.
func (s *server) awaitStuck(w *process.Worker, a *attempt) {
	w.AwaitStuck(s.life.done)
	s.mu.Lock()
	s.stuckAttempts = slices.DeleteFunc(s.stuckAttempts, func(k wire.Attempt) bool { return k.Lease == leaseOf(a) })
	s.releaseSlotUseLocked(a)
	s.sendLocked(&wire.StuckReport{Attempts: s.stuckAttempts}, true)
	s.mu.Unlock()
}
