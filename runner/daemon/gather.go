package daemon

import (
	"time"

	"github.com/queuectl/queuectl/runner/wire"
)

// This file decides when the runner sends its frames.
//
// If several results arrive together, the service stores them in one commit. A commit takes as much time as
// several short jobs, regardless of the number of results in it. So the runner gathers results for the time
// settleDelay, and sends them together. While waiting attempts keep the workers busy, the runner gathers
// longer, up to maxGatherDelays times settleDelay. The service can still send the next attempts before the
// workers run out of work. If a frame must not wait, the runner sends it together with the gathered frames.
// See docs/decisions/0046.

// gatherState describes the frames that the outbox of a connection has gathered since it was last flushed.
type gatherState struct {
	frameCount int       // number of gathered frames; if it is not 0, a timer will flush the outbox
	startedAt  time.Time // when the first of these frames was added and the timer was set
}

// maxGatherDelays bounds how long the runner gathers results, as a multiple of settleDelay. The service
// sends enough short jobs in advance to keep the workers busy during this time.
const maxGatherDelays = 4

// sendLocked queues a frame for the connected service. If sendNow is true, the frame is sent at once. Otherwise
// it is sent after at most maxGatherDelays times settleDelay.
func (s *server) sendLocked(f wire.Frame, sendNow bool) {
	s.sendEncodedLocked(wire.Append(nil, f), sendNow)
}

// sendEncodedLocked does the same as sendLocked with a frame that is already encoded.
func (s *server) sendEncodedLocked(frame []byte, sendNow bool) {
	c, delay := s.link.conn, s.link.settleDelay
	switch {
	case c == nil: // no service is connected; discard the frame, because the next HelloReply describes the current state
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

// flushGathered sends the gathered frames. If mayExtend is true and the waiting attempts will keep the
// workers busy for longer, flushGathered first waits for up to maxGatherDelays-1 times settleDelay. It predicts
// how long the workers will be busy from the rate at which frames were gathered.
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
