package daemon

import (
	"time"

	"github.com/queuectl/queuectl/runner/wire"
)

// This file decides when the runner sends its frames.
//
// A commit in the service costs as much as several short jobs, however many results it contains. So
// the runner gathers results for settleDelay, and sends them together. While the waiting attempts
// keep the workers busy, it gathers for up to maxGatherDelays delays: the service then has time to send
// the next attempts before the workers run out of work. A frame that must not wait is sent together
// with the gathered frames. See docs/decisions/0046.

// gatherState describes the frames that a connection has gathered since its last flush.
type gatherState struct {
	frameCount int       // number of gathered frames; if it is not 0, a timer will flush the outbox
	startedAt  time.Time // when the timer was set
}

// maxGatherDelays bounds how long the runner gathers results, as a multiple of settleDelay. The service sends
// enough short jobs in advance to keep the runner busy for this time.
const maxGatherDelays = 4

// sendLocked queues a frame for the connected service. The frame is sent immediately if now is true, and
// otherwise after at most maxGatherDelays times settleDelay.
func (s *server) sendLocked(f wire.Frame, now bool) { s.sendEncodedLocked(wire.Append(nil, f), now) }

func (s *server) sendEncodedLocked(frame []byte, now bool) {
	c, delay := s.link.conn, s.link.settleDelay
	switch {
	case c == nil: // discard the frame, because the next HelloReply describes the current state
	case now || delay == 0:
		c.Send(frame)
	default:
		c.Buffer(frame)
		if c.gathered.frameCount++; c.gathered.frameCount == 1 {
			c.gathered.startedAt = time.Now()
			time.AfterFunc(delay, func() { s.flushGathered(c, true) })
		}
	}
}

// flushGathered sends the gathered frames. If mayExtend is true, it may first gather for a few more
// delays: it extends the time if the waiting attempts will keep the workers busy for long enough.
// The rate at which results came in predicts that time.
func (s *server) flushGathered(c *conn, mayExtend bool) {
	s.mu.Lock()
	if mayExtend {
		delay := s.link.settleDelay
		busyFor := time.Since(c.gathered.startedAt) * time.Duration(len(s.waitingAttempts)) / time.Duration(
			c.gathered.frameCount)
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
