package daemon

import (
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/process"
)

// runnerPhase is the phase of a runner's life. A runner goes through all phases in order.
type runnerPhase int

const (
	phaseServing runnerPhase = iota // accepts and starts attempts
	phaseClosing                    // starts no more attempts, and waits until all attempts have ended
	phaseEnded                      // all attempts have ended
)

// lifetime holds the phase of a runner and the state that depends on it.
type lifetime struct {
	phase runnerPhase
	done  chan struct{} // closed when phaseEnded begins
	// shutdownRequested means that the service has sent Shutdown. The runner may then remove its directory when it
	// ends.
	shutdownRequested bool
}

// startClosingLocked begins phaseClosing: workers start no more attempts, and the runner ends once all
// attempts have ended.
func (s *server) startClosingLocked() {
	if s.life.phase == phaseServing {
		s.life.phase = phaseClosing
		s.workers.cond.Broadcast()
	}
	s.endIfDoneLocked()
}

// endIfDoneLocked ends the runner if it is in phaseClosing and all attempts have ended.
func (s *server) endIfDoneLocked() {
	if s.life.phase == phaseClosing && !s.hasUnendedAttemptsLocked() {
		s.life.phase = phaseEnded
		close(s.life.done)
	}
}

// hasUnendedAttemptsLocked reports whether any attempt is waiting or running.
func (s *server) hasUnendedAttemptsLocked() bool {
	for _, a := range s.attempts {
		if !a.hasEnded() {
			return true
		}
	}
	return false
}

// stopAll ends the runner. It drops the waiting attempts. If the operating system manages the runner as a
// separate unit and no service is connected, stopAll waits for stopTimeout, so that running attempts can
// end by themselves. Finally, it ends the attempts that still run, with the cause queue.EndStopped. Each
// attempt gets at most this grace period between SIGTERM and SIGKILL.
func (s *server) stopAll(grace time.Duration) {
	s.mu.Lock()
	s.discardWaitingAttemptsLocked()
	s.startClosingLocked()
	wait := s.link.stopTimeout
	if s.link.conn != nil || s.IsUnwanted == nil {
		// Do not wait: a connected service has already waited for its jobs, and stopTimeout is only for a runner
		// that systemd manages as a separate unit.
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
			a.endLocked(int(queue.EndStopped), min(a.startFrame.KillAfter, grace))
		}
	}
}

// unwantedCheckInterval is the time between two calls of Options.IsUnwanted. The runner ends after two
// successive calls that return true.
const unwantedCheckInterval = 2 * time.Second

// watchServiceUnit closes the given channel once the operating system has stopped the service permanently. It
// checks this only while no service is connected, because a service that is running when it is stopped sends
// Shutdown to the runner.
func (s *server) watchServiceUnit(serviceStopped chan<- struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := 0 // number of successive calls of IsUnwanted that returned true
	s.link.unwantedTimer = time.AfterFunc(unwantedCheckInterval, func() {
		isUnwanted := s.isDisconnected() && s.IsUnwanted()
		s.mu.Lock()
		defer s.mu.Unlock()
		if count++; !isUnwanted {
			count = 0
		}
		if s.link.unwantedTimer == nil { // two calls of this function overlapped; the other one has closed the channel
			return
		}
		if count == 2 {
			s.link.unwantedTimer = nil // otherwise disconnectLocked could start the timer again
			close(serviceStopped)
		} else if s.link.conn == nil && s.life.phase != phaseEnded {
			s.link.unwantedTimer.Reset(unwantedCheckInterval)
		}
	})
}

// endingReportInterval is the time between two calls of Options.OnEnding.
const endingReportInterval = 10 * time.Second

// reportEnding calls OnEnding repeatedly until the runner ends. OnEnding reports to the operating system
// that the runner needs more time.
func (s *server) reportEnding() {
	tick := time.NewTicker(endingReportInterval)
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

// idleExitDelay is how long a runner without a service and without jobs waits before it ends.
// housekeepInterval is the time between two housekeeping rounds.
const (
	idleExitDelay     = 30 * time.Second
	housekeepInterval = 30 * time.Second
)

// housekeep performs periodic work every housekeepInterval: it reaps ended orphans (processes of jobs whose parent
// has ended), removes unused control groups and leftover private directories, calls retryJournal, and ends a runner
// that has been idle for idleExitDelay. If an attempt may have left orphans, housekeep reaps them without waiting
// for the next round.
func (s *server) housekeep() {
	tick := time.NewTicker(housekeepInterval)
	defer tick.Stop()
	var nextReap <-chan time.Time // nil if ReapEnded expects no more orphans to reap soon
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
		s.sweeper.addLeftoverDirs(s.dir.workspacesDir)
		s.mu.Lock()
		if s.link.conn != nil || s.hasUnendedAttemptsLocked() || len(s.stuckAttempts) > 0 {
			s.link.lastBusyAt = time.Now()
		} else if time.Since(s.link.lastBusyAt) > idleExitDelay {
			s.startClosingLocked()
		}
		s.mu.Unlock()
	}
}

// reapPause is the time between two calls of ReapEnded if the first one expects more orphans to reap soon.
const reapPause = 100 * time.Millisecond
