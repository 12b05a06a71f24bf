package daemon

import (
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/process"
)

// runnerPhase is the phase of a runner's life. A runner goes through all phases in order.
type runnerPhase int

const (
	runnerServing runnerPhase = iota // accepts and starts attempts
	runnerClosing                    // starts no more attempts, and waits until all attempts have ended
	runnerEnded                      // all attempts have ended
)

// runnerLifetime holds the phase of a runner and the state that depends on it.
type runnerLifetime struct {
	phase runnerPhase
	ended chan struct{} // closed when runnerEnded begins
	// shutdownRequested means that the service has sent Shutdown. The runner may then remove its directory at
	// its end.
	shutdownRequested bool
}

// startClosingLocked begins runnerClosing. Workers start no more attempts, and the runner ends when all attempts
// have ended.
func (s *server) startClosingLocked() {
	if s.lifetime.phase == runnerServing {
		s.lifetime.phase = runnerClosing
		s.workers.wakeUp.Broadcast()
	}
	s.endRunnerIfDoneLocked()
}

// endRunnerIfDoneLocked ends the runner if it is in runnerClosing and all attempts have ended.
func (s *server) endRunnerIfDoneLocked() {
	if s.lifetime.phase == runnerClosing && !s.hasUnendedAttemptsLocked() {
		s.lifetime.phase = runnerEnded
		close(s.lifetime.ended)
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

// stopRunner ends the runner. It removes the waiting attempts. If systemd manages the runner as a separate unit and no
// service is connected, stopRunner waits up to disconnectedStopTimeout for the running attempts to end by themselves.
// Then it kills the attempts that still run, with the cause queue.EndStopped and at most gracePeriod between SIGTERM
// and SIGKILL.
func (s *server) stopRunner(gracePeriod time.Duration) {
	s.mu.Lock()
	s.discardWaitingAttemptsLocked()
	s.startClosingLocked()
	wait := s.serviceLink.disconnectedStopTimeout
	if s.serviceLink.conn != nil || s.IsServiceStopped == nil {
		// Do not wait. A connected service has already waited for its jobs. disconnectedStopTimeout is only for a runner that
		// systemd manages as a separate unit.
		wait = 0
	}
	s.mu.Unlock()
	select {
	case <-s.lifetime.ended:
		return
	case <-time.After(wait):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killExecutingAttemptsLocked(queue.EndStopped, gracePeriod)
}

// killExecutingAttemptsLocked kills all attempts that workers execute, with at most maxGracePeriod between SIGTERM and
// SIGKILL. It returns the number of these attempts.
func (s *server) killExecutingAttemptsLocked(endCause queue.EndCause, maxGracePeriod time.Duration) (killedCount int) {
	for _, a := range s.attempts {
		if a.isExecuting() {
			a.killLocked(int(endCause), min(a.startFrame.KillAfter, maxGracePeriod))
			killedCount++
		}
	}
	return killedCount
}

// serviceStopCheckInterval is the time between two calls of Options.IsServiceStopped, which reports whether the
// service was stopped permanently. The runner ends if two calls in a row return true.
const serviceStopCheckInterval = 2 * time.Second

// watchServiceUnit closes serviceStopped when the operating system has stopped the service permanently. It checks this
// only while no service is connected. A connected service sends the frame Shutdown instead.
func (s *server) watchServiceUnit(serviceStopped chan<- struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := 0 // number of calls of IsServiceStopped in a row that returned true
	s.serviceLink.serviceStopCheckTimer = time.AfterFunc(serviceStopCheckInterval, func() {
		isUnwanted := s.isServiceDisconnected() && s.IsServiceStopped()
		s.mu.Lock()
		defer s.mu.Unlock()
		if count++; !isUnwanted {
			count = 0
		}
		// nil means that an overlapping call of this function has closed the channel
		if s.serviceLink.serviceStopCheckTimer == nil {
			return
		}
		if count == 2 {
			s.serviceLink.serviceStopCheckTimer = nil // so that disconnectLocked does not start the timer again
			close(serviceStopped)
		} else if s.serviceLink.conn == nil && s.lifetime.phase != runnerEnded {
			s.serviceLink.serviceStopCheckTimer.Reset(serviceStopCheckInterval)
		}
	})
}

// extendStopTimeoutInterval is the time between two calls of Options.ExtendStopTimeout, which asks the operating system
// for more time.
const extendStopTimeoutInterval = 10 * time.Second

// extendStopTimeoutUntilEnd calls ExtendStopTimeout every extendStopTimeoutInterval until the runner ends.
// ExtendStopTimeout asks the operating system for more time.
func (s *server) extendStopTimeoutUntilEnd() {
	tick := time.NewTicker(extendStopTimeoutInterval)
	defer tick.Stop()
	for {
		s.ExtendStopTimeout()
		select {
		case <-s.lifetime.ended:
			return
		case <-tick.C:
		}
	}
}

// idleRunnerExitDelay is how long a runner waits, without a service and without jobs, before it ends.
// housekeepingInterval is the time between two rounds of housekeep.
const (
	idleRunnerExitDelay  = 30 * time.Second
	housekeepingInterval = 30 * time.Second
)

// runHousekeeping does periodic work every housekeepingInterval. It reaps ended orphans (processes of jobs whose
// parents have ended). It removes unused control groups and leftover private directories. It calls retryJournalWrites,
// and it ends a runner that has been idle for idleRunnerExitDelay.
//
// If an attempt may have left orphans, housekeep reaps them without waiting for the next interval.
func (s *server) runHousekeeping() {
	tick := time.NewTicker(housekeepingInterval)
	defer tick.Stop()
	// nextReap fires when ReapEndedOrphans must be called again. It is nil if no orphans will end soon.
	var nextReap <-chan time.Time
	for {
		isRound := false
		select {
		case <-s.lifetime.ended:
			return
		case <-s.orphanReapRequests:
		case <-nextReap:
		case <-tick.C:
			isRound = true
		}
		if nextReap = nil; process.ReapEndedOrphans() {
			nextReap = time.After(orphanReapInterval)
		}
		if !isRound {
			continue
		}
		if s.Cgroups != nil {
			s.Cgroups.RemoveAbandonedGroups()
		}
		s.retryJournalWrites()
		s.sweeper.queueLeftoverDirs(s.dir.workspacesDir)
		s.mu.Lock()
		if s.serviceLink.conn != nil || s.hasUnendedAttemptsLocked() || len(s.stuckAttempts) > 0 {
			s.serviceLink.runnerLastBusyAt = time.Now()
		} else if time.Since(s.serviceLink.runnerLastBusyAt) > idleRunnerExitDelay {
			s.startClosingLocked()
		}
		s.mu.Unlock()
	}
}

// orphanReapInterval is the time until ReapEndedOrphans is called again if it expects that more orphans will end soon.
const orphanReapInterval = 100 * time.Millisecond
