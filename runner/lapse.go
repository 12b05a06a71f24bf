package runner

import (
	"time"

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
	if f.For <= 0 {
		return
	}
	until := time.Now().Add(f.For)
	s.until = until
	s.lapse = time.AfterFunc(f.For, func() { s.endLapsed(until) })
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
