package daemon

import (
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/process"
)

// runnerPhase says how far a runner is on the way to its end. A runner goes through all phases in order.
type runnerPhase int

const (
	phaseServing runnerPhase = iota // takes and starts attempts
	phaseClosing                    // starts no more attempts, and ends once no attempt is left to run
	phaseEnded                      // no attempt is left to run
)

// lifetime holds the phase of a runner and the state that depends on it.
type lifetime struct {
	phase runnerPhase
	done  chan struct{} // closed in phaseEnded
	// dismissed means that the service sent Shutdown, so the runner may remove its directory when
	// it ends.
	dismissed bool
}

// startClosingLocked ends the runner once all its attempts have ended. From now on, workers start no waiting
// attempt.
func (s *server) startClosingLocked() {
	if s.life.phase == phaseServing {
		s.life.phase = phaseClosing
		s.workers.cond.Broadcast()
	}
	s.endIfDoneLocked()
}

// endIfDoneLocked ends a closing runner if no attempt is left to run.
func (s *server) endIfDoneLocked() {
	if s.life.phase == phaseClosing && !s.hasUnendedLocked() {
		s.life.phase = phaseEnded
		close(s.life.done)
	}
}

// hasUnendedLocked reports whether any attempt has not ended.
func (s *server) hasUnendedLocked() bool {
	for _, a := range s.attempts {
		if !a.hasEnded() {
			return true
		}
	}
	return false
}

// stopAll ends the runner. It drops the waiting attempts. If the runner is a unit of the operating
// system and no service is connected, it then waits for stopTimeout, so that running attempts can
// end by themselves. Finally, it ends the attempts that still run, with the cause queue.EndStopped. An
// attempt gets at most grace between SIGTERM and SIGKILL.
func (s *server) stopAll(grace time.Duration) {
	s.mu.Lock()
	s.discardWaitingLocked()
	s.startClosingLocked()
	wait := s.link.stopTimeout
	if s.link.conn != nil || s.IsUnwanted == nil {
		// A connected service itself waits for its jobs; stopTimeout is only for a runner that
		// systemd manages as a separate unit.
		wait = 0
	}
	s.mu.Unlock()
	select {
	case <-s.life.done:
		return
	case <-time.After(wait):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.attempts {
		if a.isOnWorker() {
			a.killLocked(int(queue.EndStopped), min(a.startFrame.KillAfter, grace))
		}
	}
}

// unwantedInterval is the time between two calls of IsUnwanted. The runner ends after two successive
// calls that return true.
const unwantedInterval = 2 * time.Second

// watchServiceUnit closes stopped once the operating system has stopped the service for good. This matters
// if the service was not running then, and so could not send Shutdown to the runner. It checks only while
// no service is connected.
func (s *server) watchServiceUnit(stopped chan<- struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := 0 // successive calls of IsUnwanted that returned true
	s.link.unitTimer = time.AfterFunc(unwantedInterval, func() {
		isUnwanted := s.isDisconnected() && s.IsUnwanted()
		s.mu.Lock()
		defer s.mu.Unlock()
		if count++; !isUnwanted {
			count = 0
		}
		if s.link.unitTimer == nil { // two calls of this function overlapped, and the other one has closed stopped
			return
		}
		if count == 2 {
			s.link.unitTimer = nil // a service that still connects does not start the timer again
			close(stopped)
		} else if s.link.conn == nil && s.life.phase != phaseEnded {
			s.link.unitTimer.Reset(unwantedInterval)
		}
	})
}

// endingInterval is the time between two calls of OnEnding.
const endingInterval = 10 * time.Second

// reportEnding calls OnEnding repeatedly until the runner ends. OnEnding reports to the operating system
// that the runner needs more time.
func (s *server) reportEnding() {
	tick := time.NewTicker(endingInterval)
	defer tick.Stop()
	for {
		s.OnEnding()
		select {
		case <-s.life.done:
			return
		case <-tick.C:
		}
	}
}

// idleExit is how long a runner without a service and without jobs waits before it ends.
// housekeepInterval is the time between two rounds of the method housekeep.
const (
	idleExit          = 30 * time.Second
	housekeepInterval = 30 * time.Second
)

// housekeep performs periodic work every housekeepInterval: it reaps orphans, cleans up, and ends a
// runner that has been idle for idleExit. After an attempt that may have left orphans, housekeep reaps
// them without waiting for the next round.
func (s *server) housekeep() {
	tick := time.NewTicker(housekeepInterval)
	defer tick.Stop()
	var nextReap <-chan time.Time // nil while no orphans are running
	for {
		isRound := false
		select {
		case <-s.life.done:
			return
		case <-s.orphanHint:
		case <-nextReap:
		case <-tick.C:
			isRound = true
		}
		if nextReap = nil; process.ReapEnded() {
			nextReap = time.After(reapPause)
		}
		if !isRound {
			continue
		}
		if s.Cgroups != nil {
			s.Cgroups.Sweep()
		}
		s.retryJournal()
		s.sweeper.addLeftovers(s.dir.workspacesDir)
		s.mu.Lock()
		if s.link.conn != nil || s.hasUnendedLocked() || len(s.stuckAttempts) > 0 {
			s.link.lastBusyAt = time.Now()
		} else if time.Since(s.link.lastBusyAt) > idleExit {
			s.startClosingLocked()
		}
		s.mu.Unlock()
	}
}

// reapPause is the time between two checks for ended orphans while some orphans are still running.
const reapPause = 100 * time.Millisecond
