package daemon

import (
	"slices"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// addStuckAttemptLocked records that an ended attempt still has processes that SIGKILL did not end. stuckPID is the pid
// of one of these processes. The attempt's slot in the running table stays in use. addStuckAttemptLocked then sends the
// service the list of all attempts with such processes.
func (s *server) addStuckAttemptLocked(a *attempt, stuckPID int) {
	s.tableSlots.useCountBySlot[a.tableSlot]++
	stuck := toWireAttempt(a)
	stuck.PID = int64(stuckPID)
	s.stuckAttempts = append(s.stuckAttempts, stuck)
	s.sendFrameLocked(&wire.StuckAttemptsReport{Attempts: s.stuckAttempts}, true)
}

// awaitStuckProcesses waits until the processes of the attempt that survived SIGKILL are gone, or until the runner
// ends. During the wait, no other attempt can use the worker or the attempt's slot.
func (s *server) awaitStuckProcesses(w *process.Worker, a *attempt) {
	w.AwaitStuckProcesses(s.lifetime.ended)
	s.mu.Lock()
	s.stuckAttempts = slices.DeleteFunc(s.stuckAttempts, func(k wire.Attempt) bool { return k.Lease == leaseOf(a) })
	s.releaseSlotUseLocked(a)
	s.sendFrameLocked(&wire.StuckAttemptsReport{Attempts: s.stuckAttempts}, true)
	s.mu.Unlock()
}
