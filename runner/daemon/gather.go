package daemon

import (
	"time"

	"github.com/queuectl/queuectl/runner/wire"
)

// This file decides when the runner sends its frames.
//
// If several results arrive together, the service stores them in one commit. A commit takes as much time as
// several short jobs, whatever the number of results is. So the runner gathers results for the time settleDelay
// before it sends them.
//
// While enough attempts are waiting to keep the workers busy, the runner gathers longer, up to maxGatherDelays
// times settleDelay. It sends early enough that the service can supply more attempts before the workers have no
// work. A frame that must not wait is sent together with all gathered frames. See docs/decisions/0046.

// gatherState describes the frames that are waiting in the outbox of a connection.
type gatherState struct {
	frameCount int       // number of waiting frames; if it is not 0, a timer will send them
	startedAt  time.Time // when the first of these frames was added and the timer was started
}

// maxGatherDelays limits how long the runner gathers results, as a multiple of settleDelay. The service relies
// on this limit: it sends enough short jobs in advance to keep the workers busy that long.
const maxGatherDelays = 4

// sendLocked sends a frame to the connected service. If sendNow is false, the frame may wait for other frames,
// at most for maxGatherDelays times settleDelay.
func (s *server) sendLocked(f wire.Frame, sendNow bool) {
	s.sendEncodedLocked(wire.Append(nil, f), sendNow)
}

// sendEncodedLocked is like sendLocked, for a frame that is already encoded.
func (s *server) sendEncodedLocked(frame []byte, sendNow bool) {
	c, delay := s.link.conn, s.link.settleDelay
	switch {
	case c == nil: // no service; drop the frame, because the next HelloReply contains the current state
	case sendNow || delay == 0:
		c.Send(frame)
	default:
		c.Buffer(frame)
		if c.gathered.frameCount++; c.gathered.frameCount == 1 {
			c.gathered.startedAt = time.Now()
			time.AfterFunc(delay, func() { s.flushGathered(c, true) })
		}
	}
}

// flushGathered sends the gathered frames. If mayExtend is true and enough attempts are waiting to keep the
// workers busy, it first waits, for up to maxGatherDelays-1 times settleDelay. It estimates how long the
// workers will be busy from the number of waiting attempts and the rate at which frames were gathered.
func (s *server) flushGathered(c *conn, mayExtend bool) {
	s.mu.Lock()
	if mayExtend {
		delay := s.link.settleDelay
		busyFor := time.Since(c.gathered.startedAt) * time.Duration(len(s.waitingAttempts)) /
			time.Duration(c.gathered.frameCount)
		if extension := min(busyFor-delay, (maxGatherDelays-1)*delay); extension >= delay/2 {
			time.AfterFunc(extension, func() { s.flushGathered(c, false) })
			s.mu.Unlock()
			return
		}
	}
	c.gathered.frameCount = 0
	s.mu.Unlock()
	c.FlushNow()
}
