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
	// shutdownRequested means that the service has sent Shutdown. The runner may then remove its directory at
	// its end.
	shutdownRequested bool
}

// startClosingLocked begins phaseClosing. Workers start no more attempts, and the runner ends when all attempts
// have ended.
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

// hasUnendedAttemptsLocked reports whether an attempt has not ended yet, that is, whether it is waiting,
// starting or running.
func (s *server) hasUnendedAttemptsLocked() bool {
	for _, a := range s.attempts {
		if !a.hasEnded() {
			return true
		}
	}
	return false
}

// stopAll ends the runner. It removes the waiting attempts. If systemd manages the runner as a separate unit
// and no service is connected, stopAll waits up to stopTimeout for the running attempts to end by themselves.
// Then it kills the attempts that still run, with the cause queue.EndStopped. It waits at most grace between
// SIGTERM and SIGKILL.
func (s *server) stopAll(grace time.Duration) {
	s.mu.Lock()
	s.discardWaitingAttemptsLocked()
	s.startClosingLocked()
	wait := s.link.stopTimeout
	if s.link.conn != nil || s.IsUnwanted == nil {
		// Do not wait. A connected service has already waited for its jobs. stopTimeout is only for a runner that
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
			a.endLocked(int(queue.EndStopped), min(a.startFrame.KillAfter, grace))
		}
	}
}

// unwantedCheckInterval is the time between two calls of Options.IsUnwanted, which reports whether the
// service was stopped permanently. The runner ends if two calls in a row return true.
const unwantedCheckInterval = 2 * time.Second

// watchServiceUnit closes serviceStopped when the operating system has stopped the service permanently. It
// checks this only while no service is connected. A connected service itself sends the frame Shutdown.
func (s *server) watchServiceUnit(serviceStopped chan<- struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := 0 // number of calls of IsUnwanted in a row that returned true
	s.link.unwantedTimer = time.AfterFunc(unwantedCheckInterval, func() {
		isUnwanted := s.isDisconnected() && s.IsUnwanted()
		s.mu.Lock()
		defer s.mu.Unlock()
		if count++; !isUnwanted {
			count = 0
		}
		if s.link.unwantedTimer == nil { // two calls of this function overlapped, and the other has closed the channel
			return
		}
		if count == 2 {
			s.link.unwantedTimer = nil // so that disconnectLocked does not start the timer again
			close(serviceStopped)
		} else if s.link.conn == nil && s.life.phase != phaseEnded {
			s.link.unwantedTimer.Reset(unwantedCheckInterval)
		}
	})
}

// endingReportInterval is the time between two calls of Options.OnEnding, which asks the operating system for
// more time.
const endingReportInterval = 10 * time.Second

// reportEnding calls OnEnding again and again until the runner ends. OnEnding asks the operating system for
// more time.
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

// idleExitDelay is how long a runner waits, without a service and without jobs, before it ends.
// housekeepInterval is the time between two rounds of housekeep.
const (
	idleExitDelay     = 30 * time.Second
	housekeepInterval = 30 * time.Second
)

// housekeep does periodic work every housekeepInterval. It reaps ended orphans, which are processes of jobs
// whose parent has ended. It removes unused control groups and leftover private directories, calls
// retryJournal, and ends a runner that has been idle for idleExitDelay.
//
// When an attempt may have left orphans, housekeep reaps them immediately.
func (s *server) housekeep() {
	tick := time.NewTicker(housekeepInterval)
	defer tick.Stop()
	var nextReap <-chan time.Time // fires when ReapEnded must be called again; nil if it expects no more orphans soon
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

// reapPause is the time until ReapEnded is called again if it expects that more orphans will end soon.
const reapPause = 100 * time.Millisecond
