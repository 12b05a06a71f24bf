package daemon

import (
	"slices"
	"time"

	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// attemptPhase is the phase of an attempt. The first phase begins when the service's Start frame for the attempt
// arrives. The last phase begins when the service has acknowledged the result. attemptPhaseTransitions lists the
// allowed transitions.
type attemptPhase int

const (
	attemptWaiting      attemptPhase = iota // the attempt waits for a worker
	attemptStarting                         // a worker has taken the attempt, and the command has no process yet
	attemptRunning                          // the command has a process
	attemptUnjournaled                      // the attempt has ended; its result is only in memory, so it keeps its slot
	attemptJournaled                        // the attempt has ended; its result is in the journal
	attemptAcknowledged                     // the service has its result
)

// attemptPhaseTransitions lists, for each phase, the phases that may follow. The runner removes a waiting attempt that
// the service cancels, so there is no phase for cancelled attempts.
var attemptPhaseTransitions = [...][]attemptPhase{
	attemptWaiting:      {attemptStarting},
	attemptStarting:     {attemptRunning, attemptUnjournaled, attemptJournaled}, // a failed start has no process
	attemptRunning:      {attemptUnjournaled, attemptJournaled},
	attemptUnjournaled:  {attemptJournaled, attemptAcknowledged},
	attemptJournaled:    {attemptAcknowledged},
	attemptAcknowledged: {},
}

// attempt is one execution of a job, which the service has requested with a Start frame. The server's mu guards
// its fields.
type attempt struct {
	startFrame           *wire.StartAttempt
	outputLog            *output.Log
	phase                attemptPhase
	worker               *process.Worker // worker that executes the attempt; set in attemptStarting and attemptRunning
	tableSlot            int64           // slot in the running table; 0 in attemptWaiting
	pid                  int             // pid of the main process; 0 before attemptRunning
	startedAtMillis      int64           // milliseconds since 1970
	reportsImmediately   bool            // frames about the attempt are sent without waiting for other frames
	pendingKill          func()          // executes a kill that arrived before the fork; nil if none did
	isPaused             bool            // the process tree is frozen, or must be frozen when it starts
	pendingSignals       signalQueue     // signals that are not sent to the attempt yet
	encodedResultFrame   []byte          // the encoded Result frame; nil until the attempt has ended
	resultJournalSegment int             // number of the journal segment that holds the result; 0 if none
	lastSentProgress     wire.Progress   // the progress that was last sent to the service
	workspace            workspace       // used only by the worker that runs the attempt
}

func leaseOf(a *attempt) wire.Lease { return a.startFrame.Lease }

// enterPhaseLocked moves the attempt to another phase. If attemptPhaseTransitions does not allow that, enterPhaseLocked
// changes nothing and returns false.
func (a *attempt) enterPhaseLocked(next attemptPhase) bool {
	if !slices.Contains(attemptPhaseTransitions[a.phase], next) {
		return false
	}
	a.phase = next
	return true
}

// isExecuting reports whether a worker is executing the attempt.
func (a *attempt) isExecuting() bool { return a.phase == attemptStarting || a.phase == attemptRunning }

// hasEnded reports whether the attempt has a result.
func (a *attempt) hasEnded() bool { return a.phase >= attemptUnjournaled }

// recordForkLocked records the main process of the attempt. If a kill or a pause was requested before the
// fork, recordForkLocked executes it now.
func (a *attempt) recordForkLocked(pid int, forkedAt time.Time) {
	a.enterPhaseLocked(attemptRunning)
	a.pid, a.startedAtMillis = pid, forkedAt.UnixMilli()
	if a.pendingKill != nil {
		a.pendingKill()
	} else if a.isPaused {
		a.worker.SetPaused(true, func(int, bool) {})
	}
}

// recordResultLocked records the attempt's result, as an encoded frame. journalSegment is the number of the journal
// segment that contains the result, or 0 if the result could not be written to the journal.
func (a *attempt) recordResultLocked(encodedResult []byte, journalSegment int) {
	next := attemptJournaled
	if journalSegment == 0 {
		next = attemptUnjournaled
	}
	a.enterPhaseLocked(next)
	a.worker, a.encodedResultFrame, a.resultJournalSegment = nil, encodedResult, journalSegment
}

// killLocked kills an attempt that a worker executes. If the attempt has no process yet, its process is killed right
// after the fork.
func (a *attempt) killLocked(endCause int, gracePeriod time.Duration) {
	if !a.worker.Kill(endCause, gracePeriod) {
		a.pendingKill = func() { a.worker.Kill(endCause, gracePeriod) }
	}
}

// attemptCookie returns the attempt's cookie: a text that every process of the attempt has in its environment.
func (s *server) attemptCookie(a *attempt) string {
	return runner.AttemptCookie(s.dir.runnerName, leaseOf(a))
}

// toWireAttempt returns the description of an attempt for frames to the service.
func toWireAttempt(a *attempt) wire.Attempt {
	return wire.Attempt{Lease: leaseOf(a), TableSlot: a.tableSlot, PID: int64(a.pid), StartedAtMillis: a.startedAtMillis}
}
