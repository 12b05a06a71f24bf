package daemon

import (
	"errors"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// This file ends a runner's jobs when the leases of its service expire.
//
// A service that shares its queue with other nodes has its leases for a limited time, and renews them.
// With each renewal it sends the runner a new deadline (the frame ExtendLeases). If the deadline passes without a
// renewal, the runner ends its jobs, so that another node can start them again. The service itself
// cannot be relied on for this, because it may hang or be dead. For the same reason a watchdog process
// ends a runner that hangs at the deadline.

// leaseTerm is how long the leases of the service last, and the watchdog that guards them.
type leaseTerm struct {
	endsAt         time.Time     // zero if the leases are not limited in time
	endsSinceBoot  time.Duration // end as time since boot; 0 if unknown
	timer          *time.Timer   // runs checkLeases; nil before its first use
	watchdogPhase  watchdogPhase
	watchdogNeeded chan struct{} // closed when the service has sent a lease with an end
	// watchdog kills this process if it hangs when the leases expire. It is nil while no watchdog runs.
	watchdog *launcher.Watchdog
}

// watchdogPhase says whether the leases are guarded by a watchdog. A runner that runs as root has a
// watchdog from the start. Every other runner starts one when the service sends a lease with an end.
type watchdogPhase int

const (
	watchdogUnneeded watchdogPhase = iota // the service has sent no lease with an end
	watchdogStarting                      // the watchdog is being started
	watchdogDecided                       // the watchdog was started, or could not be started
)

// canExpireLocked reports whether the leases are limited in time. The running table contains this too.
func (l *leaseTerm) canExpireLocked() bool { return !l.endsAt.IsZero() }

// awaitsWatchdogLocked reports whether attempts must wait for the watchdog before they start.
func (l *leaseTerm) awaitsWatchdogLocked() bool {
	return l.canExpireLocked() && l.watchdogPhase != watchdogDecided
}

// remainingLocked returns how long the leases still last, if they are limited in time. It is not positive if
// they have expired.
func (l *leaseTerm) remainingLocked() time.Duration {
	remaining := time.Until(l.endsAt)
	if l.endsSinceBoot != 0 {
		remaining = min(remaining, l.endsSinceBoot-runner.TimeSinceBoot())
	}
	return remaining
}

// hasExpiredLocked reports whether the leases have expired.
func (l *leaseTerm) hasExpiredLocked() bool { return l.canExpireLocked() && l.remainingLocked() <= 0 }

// extendLeasesLocked sets a new end of the leases, or none if f.Duration is 0. See docs/decisions/0030.
func (s *server) extendLeasesLocked(f *wire.ExtendLeases) {
	l := &s.leases
	if l.timer != nil {
		l.timer.Stop()
	}
	// Write to the table only if needed. If the disk hangs, the write blocks while mu is held.
	limited := f.Duration > 0
	if limited != l.canExpireLocked() {
		s.runningTable.SetLeasesExpire(limited)
		s.workers.cond.Broadcast() // waiting attempts may start without a watchdog now
	}
	if !limited {
		l.endsAt, l.endsSinceBoot = time.Time{}, 0
		l.watchdog.SetDeadline(launcher.NoDeadline)
		return
	}
	if l.watchdogPhase == watchdogUnneeded {
		l.watchdogPhase = watchdogStarting
		close(l.watchdogNeeded)
	}
	l.endsAt, l.endsSinceBoot = time.Now().Add(f.Duration), time.Duration(f.BootDeadlineMillis)*time.Millisecond
	l.timer = time.AfterFunc(l.untilCheckLocked(), s.checkLeases)
	l.armWatchdogLocked()
}

// watchdogKillDelay is how long after the end of the leases the watchdog kills a runner that has not
// ended its jobs. The shortest node lease ends later than the leases that a runner has.
// watchdogKillDelay is less than half of that difference.
const watchdogKillDelay = 150 * time.Millisecond

// armWatchdogLocked sets the time at which the watchdog kills this process if it hangs.
func (l *leaseTerm) armWatchdogLocked() {
	l.watchdog.SetDeadline(runner.TimeSinceBoot() + max(l.remainingLocked(), 0) + watchdogKillDelay)
}

// leaseCheckInterval bounds the time between two checks of the leases' end. Timers stop while a machine
// sleeps. After a sleep, only such a check detects soon that the leases have expired.
const leaseCheckInterval = time.Second

// untilCheckLocked returns how long to wait before the next check of the leases' end.
func (l *leaseTerm) untilCheckLocked() time.Duration {
	return max(0, min(l.remainingLocked(), leaseCheckInterval))
}

// checkLeases ends all jobs if the leases have expired. Otherwise it schedules the next check.
func (s *server) checkLeases() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.leases.canExpireLocked():
	case s.leases.hasExpiredLocked():
		s.endExpiredLeasesLocked()
	default:
		s.leases.timer = time.AfterFunc(s.leases.untilCheckLocked(), s.checkLeases)
	}
}

// watchdogStartLimit is how long the start of a watchdog may take before a message is logged.
const watchdogStartLimit = 5 * time.Second

// startLeaseWatchdog starts a watchdog once the service has leases that expire. If the runner dies, the
// watchdog ends its jobs in time even if the service hangs or is dead. startLeaseWatchdog returns when
// the runner ends.
func (s *server) startLeaseWatchdog() {
	select {
	case <-s.leases.watchdogNeeded:
	case <-s.life.done:
		return
	}
	warning := time.AfterFunc(watchdogStartLimit, func() {
		s.Log.Error("the watchdog, a process that ends the runner's jobs if the runner dies, has not started yet; until it " +
			"runs, this runner starts no jobs; the machine may be overloaded")
	})
	w, err := launcher.StartWatchdog(s.WatchdogCommand, s.dir.path, false, s.Log)
	warning.Stop()
	if err != nil && !errors.Is(err, process.ErrUnsupported) {
		s.Log.Error("the watchdog, a process that ends the runner's jobs if the runner dies, does not run; if runner and "+
			"service both die, jobs may run twice: here, and on the node that takes them over", "error", err)
	}
	s.setLeaseWatchdog(w)
	<-s.life.done
	s.setLeaseWatchdog(nil)
	s.runningTable.SetLeasesExpire(false) // shows the watchdog that no jobs are left to end
	w.End()
}

// setLeaseWatchdog sets the watchdog for the leases. w is nil if no watchdog runs, for example
// because it could not be started. After the call, the runner also starts attempts if the leases
// are limited in time.
func (s *server) setLeaseWatchdog(w *launcher.Watchdog) {
	s.mu.Lock()
	s.leases.watchdogPhase, s.leases.watchdog = watchdogDecided, w
	s.workers.cond.Broadcast()
	if s.leases.canExpireLocked() && !s.leases.hasExpiredLocked() {
		s.leases.armWatchdogLocked()
	}
	s.mu.Unlock()
}

// endExpiredLeasesLocked ends all jobs, because the leases have expired.
func (s *server) endExpiredLeasesLocked() {
	s.leases.watchdog.SetDeadline(launcher.NoDeadline)
	s.discardWaitingLocked()
	running := 0
	for _, a := range s.attempts {
		if a.isOnWorker() {
			a.killLocked(int(queue.EndInterrupted), 0)
			running++
		}
	}
	if running > 0 {
		s.Log.Warn("the service has not renewed its leases in time, so its jobs were ended: "+
			"another node may run them now", "ended", running)
	}
}
