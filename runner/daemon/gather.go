package daemon

import (
	"time"

	"github.com/queuectl/queuectl/runner/wire"
)

// This file decides when the runner sends its frames.
//
// If several results arrive together, the service stores them in one commit. A commit takes as much time as several
// short jobs, regardless of the number of results. So the runner gathers results for the time gatherDelay before it
// sends them.
//
// While enough attempts are waiting to keep the workers busy, the runner gathers longer, up to maxGatherDelays
// times gatherDelay. It sends early enough that the service can supply more attempts before the workers have no
// work. A frame that must not wait is sent together with all gathered frames. See docs/decisions/0046.

// gatheredFrames describes the frames that wait in the outbox of a connection to be sent together.
type gatheredFrames struct {
	frameCount         int       // number of waiting frames; if it is not 0, a timer will send them
	gatheringStartedAt time.Time // when the first of these frames was added and the timer was started
}

// maxGatherDelays limits how long the runner gathers results, as a multiple of gatherDelay. The service knows this
// limit: it sends enough short jobs in advance to keep the workers busy for that time.
const maxGatherDelays = 4

// sendFrameLocked sends a frame to the connected service. If sendNow is false, the frame may wait to be sent together
// with other frames, for at most maxGatherDelays times gatherDelay.
func (s *server) sendFrameLocked(f wire.Frame, sendNow bool) {
	s.sendEncodedFrameLocked(wire.AppendFrame(nil, f), sendNow)
}

// sendEncodedFrameLocked is like sendFrameLocked, for a frame that is already encoded.
func (s *server) sendEncodedFrameLocked(encodedFrame []byte, sendNow bool) {
	c, delay := s.serviceLink.conn, s.serviceLink.gatherDelay
	switch {
	case c == nil: // no service is connected; drop the frame, because the next HelloReply contains the current state
	case sendNow || delay == 0:
		c.SendBytes(encodedFrame)
	default:
		c.AddBytes(encodedFrame)
		if c.gatheredFrames.frameCount++; c.gatheredFrames.frameCount == 1 {
			c.gatheredFrames.gatheringStartedAt = time.Now()
			time.AfterFunc(delay, func() { s.flushGatheredFrames(c, true) })
		}
	}
}

// flushGatheredFrames sends the gathered frames. If mayGatherLonger is true and enough attempts are waiting to keep the
// workers busy, it first waits, for at most (maxGatherDelays-1) * gatherDelay, because one gatherDelay has already
// passed. It estimates for how long the workers have work from the number of waiting attempts and from how fast frames
// were gathered.
func (s *server) flushGatheredFrames(c *serviceConn, mayGatherLonger bool) {
	s.mu.Lock()
	if mayGatherLonger {
		delay := s.serviceLink.gatherDelay
		busyFor := time.Since(c.gatheredFrames.gatheringStartedAt) * time.Duration(len(s.waitingAttempts)) /
			time.Duration(c.gatheredFrames.frameCount)
		if extension := min(busyFor-delay, (maxGatherDelays-1)*delay); extension >= delay/2 {
			time.AfterFunc(extension, func() { s.flushGatheredFrames(c, false) })
			s.mu.Unlock()
			return
		}
	}
	c.gatheredFrames.frameCount = 0
	s.mu.Unlock()
	c.FlushNonBlocking()
}
