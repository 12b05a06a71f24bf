package daemon

import (
	"os"
	"time"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// serviceLink is the runner's link to its service: the current connection, and settings that the service
// has sent.
type serviceLink struct {
	epoch int64 // highest epoch of a service that has connected; 0 before the first connection
	conn  *conn // connection to the service with the newest epoch; nil while no service is connected
	// unwantedTimer calls IsUnwanted while no service is connected. It is nil if Options.IsUnwanted is nil, and
	// once the runner knows that the service was stopped permanently.
	unwantedTimer *time.Timer
	lastBusyAt    time.Time     // when the runner last had a service or a running attempt
	settleDelay   time.Duration // how long results are gathered before they are sent; set by a Setup frame
	// stopTimeout is how long running attempts may continue when the operating system ends the runner
	// while no service is connected. A Setup frame sets it.
	stopTimeout time.Duration
}

// connectLocked makes c the only connection whose frames are executed.
func (l *serviceLink) connectLocked(c *conn, epoch int64) {
	if l.conn != nil {
		l.conn.close()
	}
	l.epoch, c.epoch, l.conn = epoch, epoch, c
}

// disconnectLocked records that the connection c has ended. It reports whether c was the current
// connection.
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

// helloLocked answers a Hello. If its epoch is higher than all earlier ones, helloLocked makes c the current
// connection and returns true.
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

// helloReplyLocked returns the answer to a Hello, and the encoded frames that follow it: the results that no
// service has acknowledged, and the progress of running attempts.
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

// limitEnforcements returns how this runner enforces each limit.
func (s *server) limitEnforcements() (enforcements []wire.LimitEnforcement) {
	for _, e := range process.Enforcements(s.Cgroups) {
		enforcements = append(enforcements, wire.LimitEnforcement{Limit: e.Limit, Extent: int64(e.Extent),
			Mechanism: e.Mechanism})
	}
	return enforcements
}
