package runner

import (
	"errors"
	"math"
	"time"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// The service may have its leases for a time only, which it prolongs. A runner whose service does not, or cannot say so, ends what
// it runs before others may begin it anew.

// prolong has the runner go on for a while. The caller holds mu.
// See docs/decisions/0030.
func (s *server) prolong(f *wire.Prolong) {
	if s.lapse != nil {
		s.lapse.Stop()
	}
	s.until, s.untilBoot = time.Time{}, 0
	if forTime := f.For > 0; forTime != s.forTime { // who writes to a disk that stands still waits with mu
		s.forTime = forTime
		s.table.leased(forTime)
		s.more.Broadcast() // what is leased for ever needs no watchdog
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

// never is an instant that does not come.
const never = time.Duration(math.MaxInt64)

// lateMost is how much later than the time is over a runner may end what it runs: less than half of what the shortest lease leaves between that and
// its own end.
const lateMost = 150 * time.Millisecond

// guardLeases has the watchdog end this process if it stands still when the time is over. The caller holds mu.
func (s *server) guardLeases() {
	now := SinceBoot()
	due := now + time.Until(s.until)
	if s.untilBoot != 0 {
		due = min(due, s.untilBoot)
	}
	s.guard.until(max(due, now) + lateMost)
}

// lapseLook is how soon after a machine has slept it is seen that the time is over: timers do not count its sleep.
const lapseLook = time.Second

// leaseLeft is when to look whether the time is over. The caller holds mu.
func (s *server) leaseLeft() time.Duration {
	left := time.Until(s.until)
	if s.untilBoot != 0 {
		left = min(left, s.untilBoot-SinceBoot(), lapseLook)
	}
	return max(left, 0)
}

// lookLapsed ends what runs if the time is over.
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

// guardWithin is how long a watchdog may take to start before that is told.
const guardWithin = 5 * time.Second

func (s *server) unguarded() {
	s.Log.Error("watchdog not running yet; until it runs, this runner starts no jobs that another node could take over")
}

// watchLeases has a watchdog end what runs if the runner dies, once its service has leases for a time: of a
// service that stands still or has died nobody else would do so in time. It returns when the runner ends.
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
	s.table.leased(false) // for the watchdog: nothing of it runs
	w.end()
}

// guards has a watchdog, or none, look after the leases. What is leased for a time begins from then on.
func (s *server) guards(w *watchdog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.guarded = true
	s.more.Broadcast()
	if s.guard = w; !s.until.IsZero() && !s.lapsed() {
		s.guardLeases()
	}
}

// lapsed reports whether the time is over. The caller holds mu.
func (s *server) lapsed() bool {
	return !s.until.IsZero() && (!time.Now().Before(s.until) || s.untilBoot != 0 && SinceBoot() >= s.untilBoot)
}

// endLapsed ends all that runs. The caller holds mu.
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
