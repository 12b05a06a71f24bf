package runner

import (
	"errors"
	"time"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// The service may have its leases for a time only, which it prolongs. A runner whose service does not, or cannot say so, ends what
// it runs before others may begin it anew.

// prolong has the runner go on for a while. The caller holds mu.
func (s *server) prolong(f *wire.Prolong) {
	if s.lapse != nil {
		s.lapse.Stop()
	}
	s.until = time.Time{}
	s.table.leased(f.For > 0)
	if f.For <= 0 {
		return
	}
	s.leased.Do(func() { close(s.leases) })
	until := time.Now().Add(f.For)
	s.until = until
	s.lapse = time.AfterFunc(f.For, func() { s.endLapsed(until) })
}

// watchLeases has a watchdog end what runs if the runner dies, once its service has leases for a time: of a
// service that stands still or has died nobody else would do so in time. It returns when the runner ends.
func (s *server) watchLeases() {
	select {
	case <-s.leases:
	case <-s.ended:
		return
	}
	w, err := startWatchdog(s.Watchdog, s.dir, false, s.Log)
	if err != nil && !errors.Is(err, process.ErrUnsupported) {
		s.Log.Error("nobody would end what runs before others run it, if this runner and its service died together", "error", err)
	}
	<-s.ended
	s.table.leased(false) // for the watchdog: nothing of it runs
	w.end()
}

// lapsed reports whether the time is over. The caller holds mu.
func (s *server) lapsed() bool { return !s.until.IsZero() && !time.Now().Before(s.until) }

// endLapsed ends all that runs, if nothing has come since that has the runner go on.
func (s *server) endLapsed(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until != until {
		return
	}
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
		s.Log.Warn("the service has not prolonged its leases: what ran is ended, before others run it", "ended", ended)
	}
}
