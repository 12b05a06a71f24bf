package runner

import (
	"errors"
	"math"
	"time"

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
	if s.lapse != nil {
		s.lapse.Stop()
	}
	s.until, s.untilBoot = time.Time{}, 0
	// Write to the table only if needed: on a disk that hangs, the write would block with mu held.
	if forTime := f.For > 0; forTime != s.forTime {
		s.forTime = forTime
		s.table.leased(forTime)
		s.more.Broadcast() // attempts whose leases do not expire need not wait for a watchdog
	}
	if !s.forTime {
		s.guard.until(never)
		return
	}
	s.leased.Do(func() { close(s.leases) })
	s.until, s.untilBoot = time.Now().Add(f.For), time.Duration(f.By)*time.Millisecond
	s.lapse = time.AfterFunc(s.leaseLeft(), s.lookLapsed)
	s.guardLeases()
}

// never is an instant that is never reached.
const never = time.Duration(math.MaxInt64)

// lateMost is how long after the end of the leases the watchdog kills a runner that has not ended its
// jobs. It is less than half of the time between that end and the end of the shortest node lease.
const lateMost = 150 * time.Millisecond

// guardLeases sets the time at which the watchdog kills this process if it hangs. The caller holds mu.
func (s *server) guardLeases() {
	now := SinceBoot()
	due := now + time.Until(s.until)
	if s.untilBoot != 0 {
		due = min(due, s.untilBoot)
	}
	s.guard.until(max(due, now) + lateMost)
}

// lapseLook bounds the time between two checks of the leases' end. Timers do not count the time that a
// machine sleeps, so only such a check detects soon after a sleep that the leases have expired.
const lapseLook = time.Second

// leaseLeft returns how long to wait before the next check of the leases' end. The caller holds mu.
func (s *server) leaseLeft() time.Duration {
	left := time.Until(s.until)
	if s.untilBoot != 0 {
		left = min(left, s.untilBoot-SinceBoot(), lapseLook)
	}
	return max(left, 0)
}

// lookLapsed ends all jobs if the leases have expired. Otherwise it schedules the next check.
func (s *server) lookLapsed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.until.IsZero():
	case s.lapsed():
		s.endLapsed()
	default:
		s.lapse = time.AfterFunc(s.leaseLeft(), s.lookLapsed)
	}
}

// guardWithin is how long the start of a watchdog may take before a message is logged.
const guardWithin = 5 * time.Second

func (s *server) unguarded() {
	s.Log.Error("watchdog not running yet; until it runs, this runner starts no jobs that another node could take over")
}

// watchLeases starts a watchdog once the service has leases that expire. If the runner dies, the
// watchdog ends its jobs in time even if the service hangs or is dead. watchLeases returns when the
// runner ends.
func (s *server) watchLeases() {
	select {
	case <-s.leases:
	case <-s.ended:
		return
	}
	late := time.AfterFunc(guardWithin, s.unguarded)
	w, err := startWatchdog(s.Watchdog, s.dir, false, s.Log)
	late.Stop()
	if err != nil && !errors.Is(err, process.ErrUnsupported) {
		s.Log.Error("watchdog not running: if runner and service both die, jobs may run twice after the takeover", "error", err)
	}
	s.guards(w)
	<-s.ended
	s.guards(nil)
	s.table.leased(false) // shows the watchdog that no jobs are left to end
	w.end()
}

// guards sets the watchdog for the leases, nil for none. From then on, the runner starts attempts whose
// leases expire.
func (s *server) guards(w *watchdog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.guarded = true
	s.more.Broadcast()
	if s.guard = w; !s.until.IsZero() && !s.lapsed() {
		s.guardLeases()
	}
}

// lapsed reports whether the leases have expired. The caller holds mu.
func (s *server) lapsed() bool {
	return !s.until.IsZero() && (!time.Now().Before(s.until) || s.untilBoot != 0 && SinceBoot() >= s.untilBoot)
}

// endLapsed ends all jobs. The caller holds mu.
func (s *server) endLapsed() {
	s.guard.until(never)
	ended := 0
	for _, a := range s.waiting {
		s.forgo(a)
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
