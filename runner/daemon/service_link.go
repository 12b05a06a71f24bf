package daemon

import (
	"os"
	"time"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// serviceLink holds the connection to the service, and the settings that the service has sent.
type serviceLink struct {
	epoch int64 // highest number of a service start (epoch) that has connected; 0 before the first
	conn  *conn // connection to the service with the newest epoch; nil while no service is connected
	// unwantedTimer calls IsUnwanted while no service is connected. It is nil if Options.IsUnwanted is nil, or
	// if the runner already knows that the service was stopped permanently.
	unwantedTimer *time.Timer
	lastBusyAt    time.Time     // when the runner last had a service or a running attempt
	settleDelay   time.Duration // how long results wait for others before they are sent; set by a Setup frame
	// stopTimeout is how long running attempts may continue when the operating system ends the runner
	// while no service is connected. A Setup frame sets it.
	stopTimeout time.Duration
}

// connectLocked makes c the current connection and closes the previous one.
func (l *serviceLink) connectLocked(c *conn, epoch int64) {
	if l.conn != nil {
		l.conn.close()
	}
	l.epoch, c.epoch, l.conn = epoch, epoch, c
}

// disconnectLocked records that the connection c has ended. If c is not the current connection, it changes
// nothing and returns false.
func (l *serviceLink) disconnectLocked(c *conn) bool {
	if l.conn != c {
		return false
	}
	l.conn, l.lastBusyAt = nil, time.Now()
	if l.unwantedTimer != nil {
		l.unwantedTimer.Reset(unwantedCheckInterval)
	}
	return true
}

func (s *server) isDisconnected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link.conn == nil
}

// helloLocked answers a Hello. It makes c the current connection and returns true if the Hello has a higher
// epoch (number of a service start) than all earlier ones. Otherwise it returns false.
func (s *server) helloLocked(c *conn, h *wire.Hello) bool {
	if h.Epoch == wire.NoEpoch {
		k, _ := s.helloReplyLocked()
		c.SendFrames(k)
		return false
	}
	if h.Epoch <= s.link.epoch || s.life.phase == phaseEnded {
		c.SendFrames(&wire.HelloRefusal{Epoch: s.link.epoch})
		return false
	}
	s.link.connectLocked(c, h.Epoch)
	k, stateFrames := s.helloReplyLocked()
	frames := wire.Append(nil, k)
	if len(s.stuckAttempts) > 0 {
		frames = wire.Append(frames, &wire.StuckReport{Attempts: s.stuckAttempts})
	}
	c.Send(append(frames, stateFrames...))
	return true
}

// endingSuffix is appended to the reported version of a runner that is about to end.
const endingSuffix = " (ending)"

// helloReplyLocked returns the answer to a Hello and, encoded, the frames to send after it. These are the
// results that no service has acknowledged, and the progress of running attempts.
func (s *server) helloReplyLocked() (reply *wire.HelloReply, frames []byte) {
	reply = &wire.HelloReply{
		ProtocolVersion: wire.ProtocolVersion, Version: s.Version, PID: int64(
			os.Getpid()), Enforcements: s.limitEnforcements(),
	}
	if s.life.phase != phaseServing { // the service sends no new jobs to a runner whose version differs from its own
		reply.Version += endingSuffix
	}
	for _, a := range s.attempts {
		if a.hasEnded() {
			reply.EndedLeases = append(reply.EndedLeases, leaseOf(a))
			frames = append(frames, a.encodedResult...)
			continue
		}
		reply.Attempts = append(reply.Attempts, wireAttempt(a))
		if a.sentProgress.ReportedAtMillis != 0 {
			frames = wire.Append(frames, &wire.ProgressReport{Lease: leaseOf(a), Progress: a.sentProgress})
		}
	}
	return reply, frames
}

// limitEnforcements returns, for each limit of jobs, how this runner enforces it.
func (s *server) limitEnforcements() (enforcements []wire.LimitEnforcement) {
	for _, e := range process.Enforcements(s.Cgroups) {
		enforcements = append(enforcements, wire.LimitEnforcement{Limit: e.Limit, Extent: int64(e.Extent),
			Mechanism: e.Mechanism})
	}
	return enforcements
}
