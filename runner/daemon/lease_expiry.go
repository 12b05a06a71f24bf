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
// A lease is the right of a service to run one job. If several nodes share a queue, the leases expire after a limited
// time unless the service renews them. With each renewal, the service sends the runner a new deadline (the frame
// ExtendLeases). If the deadline passes, the runner ends its jobs. Another node can then start the jobs again.
//
// The service cannot end the jobs itself in that case, because it may hang or be dead. The runner may hang too.
// Therefore a watchdog process ends the runner and its jobs if the runner does not end its jobs in time.

// leaseExpiry says when the leases of the service end. All leases end at the same time. leaseExpiry also contains the
// watchdog: a process that ends the jobs in time if the runner hangs or dies.
type leaseExpiry struct {
	leasesEndAt          time.Time     // zero if the leases are not limited in time
	leasesEndSinceBoot   time.Duration // leasesEndAt as time since boot; 0 if unknown
	expiryCheckTimer     *time.Timer   // runs checkLeaseExpiry; nil before its first use
	watchdogNeededSignal chan struct{} // receives a value when the leases are limited in time
	// watchdogStartDone means that the watchdog was started, or could not be started. A runner of root has a watchdog from
	// the start. Any other runner starts a watchdog when its service first limits the leases in time.
	watchdogStartDone bool
	// watchdog kills this process if the process hangs when the leases end. It is nil if no watchdog runs.
	watchdog *launcher.Watchdog
}

// leasesCanExpireLocked reports whether the leases are limited in time. The same information is in the running table,
// where the watchdog reads it.
func (l *leaseExpiry) leasesCanExpireLocked() bool { return !l.leasesEndAt.IsZero() }

// awaitsWatchdogLocked reports whether no attempt may start yet, because the watchdog is still being started.
func (l *leaseExpiry) awaitsWatchdogLocked() bool {
	return l.leasesCanExpireLocked() && !l.watchdogStartDone
}

// remainingLeaseTimeLocked returns how long the leases still last. It is 0 or negative if they have ended. Call it only
// if the leases are limited in time.
func (l *leaseExpiry) remainingLeaseTimeLocked() time.Duration {
	remaining := time.Until(l.leasesEndAt)
	if l.leasesEndSinceBoot != 0 {
		remaining = min(remaining, l.leasesEndSinceBoot-runner.TimeSinceBoot())
	}
	return remaining
}

// haveLeasesExpiredLocked reports whether the leases have expired.
func (l *leaseExpiry) haveLeasesExpiredLocked() bool {
	return l.leasesCanExpireLocked() && l.remainingLeaseTimeLocked() <= 0
}

// extendLeasesLocked sets a new end of the leases. If f.Duration is 0, the leases are no longer limited in
// time. See docs/decisions/0030.
func (s *server) extendLeasesLocked(f *wire.ExtendLeases) {
	l := &s.leaseExpiry
	if l.expiryCheckTimer != nil {
		l.expiryCheckTimer.Stop()
	}
	// Write to the running table only if the value changes. A write blocks if the disk hangs. Because mu is held, it
	// would then block the whole server.
	limited := f.Duration > 0
	if limited != l.leasesCanExpireLocked() {
		s.runningTable.SetLeasesExpire(limited)
		s.workers.wakeUp.Broadcast() // waiting attempts no longer need a watchdog to start
	}
	if !limited {
		l.leasesEndAt, l.leasesEndSinceBoot = time.Time{}, 0
		l.watchdog.SetKillDeadline(launcher.NoKillDeadline)
		return
	}
	wire.SendWakeSignal(l.watchdogNeededSignal)
	l.leasesEndAt, l.leasesEndSinceBoot = time.Now().Add(f.Duration), time.Duration(f.ExpiryBootMillis)*time.Millisecond
	l.expiryCheckTimer = time.AfterFunc(l.timeUntilNextCheckLocked(), s.checkLeaseExpiry)
	l.armWatchdogLocked()
}

// watchdogKillDelay is the time from the end of the leases until the watchdog kills a runner that has not ended its
// jobs. Another node may take over the jobs when the lease of the node ends, which is later than the end of the jobs'
// leases. watchdogKillDelay is less than half of the shortest possible time between these two ends.
const watchdogKillDelay = 150 * time.Millisecond

// armWatchdogLocked makes the watchdog kill this process watchdogKillDelay after the end of the leases. Until
// then, a renewal of the leases can set a later time.
func (l *leaseExpiry) armWatchdogLocked() {
	l.watchdog.SetKillDeadline(runner.TimeSinceBoot() + max(l.remainingLeaseTimeLocked(), 0) + watchdogKillDelay)
}

// leaseCheckInterval is the longest time between two checks whether the leases have ended. Timers do not advance while
// the machine sleeps. So a single timer for the end of the leases would fire too late after a sleep.
const leaseCheckInterval = time.Second

// timeUntilNextCheckLocked returns how long to wait before the next check whether the leases have expired.
func (l *leaseExpiry) timeUntilNextCheckLocked() time.Duration {
	return max(0, min(l.remainingLeaseTimeLocked(), leaseCheckInterval))
}

// checkLeaseExpiry ends all jobs if the leases have expired. Otherwise it schedules the next check.
func (s *server) checkLeaseExpiry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.leaseExpiry.leasesCanExpireLocked():
	case s.leaseExpiry.haveLeasesExpiredLocked():
		s.endExpiredLeasesLocked()
	default:
		s.leaseExpiry.expiryCheckTimer = time.AfterFunc(s.leaseExpiry.timeUntilNextCheckLocked(), s.checkLeaseExpiry)
	}
}

// watchdogStartWarnDelay is how long the start of a watchdog may take before a message is logged.
const watchdogStartWarnDelay = 5 * time.Second

// startLeaseWatchdog waits until the leases are limited in time, and then starts a watchdog. If the runner dies, the
// watchdog ends the runner's jobs in time, even if the service hangs and cannot do it. startLeaseWatchdog returns when
// the runner ends.
func (s *server) startLeaseWatchdog() {
	select {
	case <-s.leaseExpiry.watchdogNeededSignal:
	case <-s.lifetime.ended:
		return
	}
	warning := time.AfterFunc(watchdogStartWarnDelay, func() {
		s.Log.Error("the watchdog, a process that ends the runner's jobs if the runner dies, has not started yet; until it " +
			"runs, this runner starts no jobs; the machine may be overloaded")
	})
	w, err := launcher.StartWatchdog(s.WatchdogCommand, s.dir.dirPath, false, s.Log)
	warning.Stop()
	if err != nil && !errors.Is(err, process.ErrUnsupported) {
		s.Log.Error("the watchdog, a process that ends the runner's jobs if the runner dies, does not run; if runner and "+
			"service both die, jobs may run twice: here, and on the node that takes them over", "error", err)
	}
	s.setLeaseWatchdog(w)
	<-s.lifetime.ended
	s.setLeaseWatchdog(nil)
	s.runningTable.SetLeasesExpire(false) // no jobs are left, so the watchdog must not try to end jobs
	w.End()
}

// setLeaseWatchdog records the watchdog for the leases. w is nil if no watchdog runs, for example because it
// could not be started. Attempts that were waiting for the watchdog may then start.
func (s *server) setLeaseWatchdog(w *launcher.Watchdog) {
	s.mu.Lock()
	s.leaseExpiry.watchdogStartDone, s.leaseExpiry.watchdog = true, w
	s.workers.wakeUp.Broadcast()
	if s.leaseExpiry.leasesCanExpireLocked() && !s.leaseExpiry.haveLeasesExpiredLocked() {
		s.leaseExpiry.armWatchdogLocked()
	}
	s.mu.Unlock()
}

// endExpiredLeasesLocked ends all jobs, because the leases have expired.
func (s *server) endExpiredLeasesLocked() {
	s.leaseExpiry.watchdog.SetKillDeadline(launcher.NoKillDeadline)
	s.discardWaitingAttemptsLocked()
	if running := s.killExecutingAttemptsLocked(queue.EndInterrupted, 0); running > 0 {
		s.Log.Warn("the service has not renewed its leases in time, so its jobs were ended: "+
			"another node may run them now", "ended", running)
	}
}
