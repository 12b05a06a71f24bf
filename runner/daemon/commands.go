package daemon

import (
	"slices"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// This file executes the frames with which the service acts on a running attempt.

// typeInputLocked writes a user's input to the terminal of a running attempt, up to the number of bytes for
// which the terminal has room. ok is false if the attempt does not run or has no terminal.
func (s *server) typeInputLocked(f *wire.TypeInput) (t process.TypeInputResult, ok bool) {
	a := s.attempts[f.Lease]
	if a == nil || a.phase != attemptRunning {
		return t, false
	}
	return a.worker.TypeInput(a.pid, f.Data)
}

// handlePauseLocked freezes or resumes an attempt and answers the service. An attempt that has not started yet is
// frozen when it starts.
func (s *server) handlePauseLocked(c *serviceConn, f *wire.PauseAttempt) {
	answer := func(unchangedCount int, ok bool) {
		c.SendFrames(&wire.PauseReply{RequestID: f.RequestID, UnchangedProcessCount: int64(unchangedCount),
			AttemptNotRunning: !ok})
	}
	a := s.attempts[f.Lease]
	if a == nil || a.hasEnded() {
		answer(0, false)
		return
	}
	a.isPaused = f.Paused
	if a.phase != attemptRunning {
		answer(0, true)
		return
	}
	a.worker.SetPaused(f.Paused, answer)
}

// signalQueue contains the signals that are not sent to an attempt yet. A separate goroutine sends them, because
// sending takes long: it may have to check every process of the machine.
type signalQueue struct {
	signalNumbers []int64 // contains each signal at most once
	isSending     bool    // the goroutine that sends the signals is running
}

// queueSignalLocked queues a signal for all processes of an attempt. If the same signal is already queued, it does
// nothing.
func (s *server) queueSignalLocked(f *wire.SignalAttempt) {
	a := s.attempts[f.Lease]
	if a == nil || a.phase != attemptRunning || slices.Contains(a.pendingSignals.signalNumbers, f.SignalNumber) {
		return
	}
	a.pendingSignals.signalNumbers = append(a.pendingSignals.signalNumbers, f.SignalNumber)
	if !a.pendingSignals.isSending {
		a.pendingSignals.isSending = true
		w, pid, cookie := a.worker, a.pid, s.attemptCookie(a)
		s.goroutines.Go(func() {
			for n, more := s.takeNextSignal(a); more; n, more = s.takeNextSignal(a) {
				w.Signal(pid, cookie, int(n))
			}
		})
	}
}

// takeNextSignal removes the first queued signal of the attempt and returns it. found is false if the queue is
// empty.
func (s *server) takeNextSignal(a *attempt) (signalNumber int64, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(a.pendingSignals.signalNumbers) == 0 {
		a.pendingSignals.isSending = false
		return 0, false
	}
	signalNumber, a.pendingSignals.signalNumbers = a.pendingSignals.signalNumbers[0], a.pendingSignals.signalNumbers[1:]
	return signalNumber, true
}

// reportImmediatelyLocked makes the runner send all further frames about an attempt immediately, instead of gathering
// them with other frames.
func (s *server) reportImmediatelyLocked(f *wire.ReportAttemptImmediately) {
	a := s.attempts[f.Lease]
	if a == nil {
		return
	}
	a.reportsImmediately = true
	if a.phase >= attemptRunning && s.serviceLink.conn != nil { // frames about the attempt may wait in the outbox
		s.serviceLink.conn.FlushNonBlocking()
	}
}
