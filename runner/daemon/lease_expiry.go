package daemon

import (
	"errors"
	"time"

	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// This file ends a runner's jobs when the leases of its service expire.
//
// A service that shares its queue with other nodes has its leases for a limited time, and renews them.
// With each renewal it sends the runner a new deadline (PROLONG). If the deadline passes without a
// renewal, the runner ends its jobs, so that another node can start them again. The service itself
// cannot be relied on for this, because it may hang or be dead. For the same reason a watchdog process
// ends a runner that hangs at the deadline.

// prolong sets a new end of the leases, or none if For is 0. The caller holds mu.
// See docs/decisions/0030.
func (s *server) prolong(f *wire.Prolong) {
	if s.leaseTimer != nil {
		s.leaseTimer.Stop()
	}
	s.leasesEnd, s.leasesEndBoot = time.Time{}, 0
	// Write to the table only if needed: on a disk that hangs, the write would block with mu held.
	if expire := f.For > 0; expire != s.leasesExpire {
		s.leasesExpire = expire
		s.table.SetLeasesExpire(expire)
		s.workerCond.Broadcast() // if the leases do not expire, waiting attempts need no watchdog to start
	}
	if !s.leasesExpire {
		s.leaseWatchdog.SetDeadline(launcher.Never)
		return
	}
	s.leasesSeenOnce.Do(func() { close(s.leasesSeen) })
	s.leasesEnd, s.leasesEndBoot = time.Now().Add(f.For), time.Duration(f.By)*time.Millisecond
	s.leaseTimer = time.AfterFunc(s.untilLeaseCheck(), s.checkLeases)
	s.armWatchdog()
}

// watchdogDelay is how long after the end of the leases the watchdog kills a runner that has not ended
// its jobs. It is less than half of the time between that end and the end of the shortest node lease.
const watchdogDelay = 150 * time.Millisecond

// armWatchdog sets the time at which the watchdog kills this process if it hangs. The caller holds mu.
func (s *server) armWatchdog() {
	now := runner.SinceBoot()
	due := now + time.Until(s.leasesEnd)
	if s.leasesEndBoot != 0 {
		due = min(due, s.leasesEndBoot)
	}
	s.leaseWatchdog.SetDeadline(max(due, now) + watchdogDelay)
}

// leaseCheckInterval bounds the time between two checks of the leases' end. Timers stop while a machine
// sleeps. After a sleep, only such a check detects soon that the leases have expired.
const leaseCheckInterval = time.Second

// untilLeaseCheck returns how long to wait before the next check of the leases' end. The caller holds
// mu.
func (s *server) untilLeaseCheck() time.Duration {
	wait := time.Until(s.leasesEnd)
	if s.leasesEndBoot != 0 {
		wait = min(wait, s.leasesEndBoot-runner.SinceBoot(), leaseCheckInterval)
	}
	return max(wait, 0)
}

// checkLeases ends all jobs if the leases have expired. Otherwise it schedules the next check.
func (s *server) checkLeases() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.leasesEnd.IsZero():
	case s.leasesExpired():
		s.endExpired()
	default:
		s.leaseTimer = time.AfterFunc(s.untilLeaseCheck(), s.checkLeases)
	}
}

// watchdogStartLimit is how long the start of a watchdog may take before a message is logged.
const watchdogStartLimit = 5 * time.Second

func (s *server) warnNoWatchdog() {
	s.Log.Error("watchdog not running yet; until it runs, this runner starts no jobs that another node could take over")
}

// startLeaseWatchdog starts a watchdog once the service has leases that expire. If the runner dies, the
// watchdog ends its jobs in time even if the service hangs or is dead. startLeaseWatchdog returns when
// the runner ends.
func (s *server) startLeaseWatchdog() {
	select {
	case <-s.leasesSeen:
	case <-s.done:
		return
	}
	warning := time.AfterFunc(watchdogStartLimit, s.warnNoWatchdog)
	w, err := launcher.StartWatchdog(s.Watchdog, s.dir, false, s.Log)
	warning.Stop()
	if err != nil && !errors.Is(err, process.ErrUnsupported) {
		s.Log.Error("watchdog not running: if runner and service both die, jobs may run twice after the takeover", "error", err)
	}
	s.setLeaseWatchdog(w)
	<-s.done
	s.setLeaseWatchdog(nil)
	s.table.SetLeasesExpire(false) // shows the watchdog that no jobs are left to end
	w.End()
}

// setLeaseWatchdog sets the watchdog for the leases. w is nil if no watchdog runs, for example because
// it could not be started. After the call, the runner starts attempts whose leases expire.
func (s *server) setLeaseWatchdog(w *launcher.Watchdog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchdogSettled = true
	s.workerCond.Broadcast()
	if s.leaseWatchdog = w; !s.leasesEnd.IsZero() && !s.leasesExpired() {
		s.armWatchdog()
	}
}

// leasesExpired reports whether the leases have expired. The caller holds mu.
func (s *server) leasesExpired() bool {
	return !s.leasesEnd.IsZero() && (!time.Now().Before(s.leasesEnd) || s.leasesEndBoot != 0 && runner.SinceBoot() >= s.leasesEndBoot)
}

// endExpired ends all jobs. The caller holds mu.
func (s *server) endExpired() {
	s.leaseWatchdog.SetDeadline(launcher.Never)
	ended := 0
	for _, a := range s.waiting {
		s.discard(a)
	}
	s.waiting = nil
	for _, a := range s.attempts {
		if a.worker != nil && a.result == nil {
			a.kill(causeInterrupted, 0)
			ended++
		}
	}
	if ended > 0 {
		s.Log.Warn("the service has not renewed its leases in time, so its jobs were ended: another node may run them now", "ended", ended)
	}
}
