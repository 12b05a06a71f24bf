package daemon

import (
	"os"
	"time"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// serviceLink contains the connection to the service, and settings that the service has sent.
type serviceLink struct {
	newestEpoch int64        // highest epoch (number of a service start) that has connected; 0 before the first
	conn        *serviceConn // connection to the service with the newest epoch; nil while no service is connected
	// serviceStopCheckTimer calls IsServiceStopped while no service is connected. It is nil if Options.IsServiceStopped is
	// nil. It is also nil when the runner knows that the service was stopped permanently.
	serviceStopCheckTimer *time.Timer
	runnerLastBusyAt      time.Time // when the runner last had a service or a running attempt
	// how long results wait for other results before they are sent; set by a Setup frame
	gatherDelay time.Duration
	// disconnectedStopTimeout is how long running attempts may continue when the operating system ends the runner
	// while no service is connected. A Setup frame sets it.
	disconnectedStopTimeout time.Duration
}

// connectLocked makes c the current connection and closes the previous one.
func (l *serviceLink) connectLocked(c *serviceConn, epoch int64) {
	if l.conn != nil {
		l.conn.close()
	}
	l.newestEpoch, c.epoch, l.conn = epoch, epoch, c
}

// disconnectLocked records that the connection c has ended. If c is not the current connection, it changes
// nothing and returns false.
func (l *serviceLink) disconnectLocked(c *serviceConn) bool {
	if l.conn != c {
		return false
	}
	l.conn, l.runnerLastBusyAt = nil, time.Now()
	if l.serviceStopCheckTimer != nil {
		l.serviceStopCheckTimer.Reset(serviceStopCheckInterval)
	}
	return true
}

func (s *server) isServiceDisconnected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serviceLink.conn == nil
}

// handleHelloLocked answers a Hello. If the epoch of the Hello (the number of a service start) is higher than all
// earlier epochs, handleHelloLocked makes c the current connection and returns true. Otherwise it returns false.
func (s *server) handleHelloLocked(c *serviceConn, h *wire.Hello) bool {
	if h.Epoch == wire.NoEpoch {
		k, _ := s.helloReplyLocked()
		c.SendFrames(k)
		return false
	}
	if h.Epoch <= s.serviceLink.newestEpoch || s.lifetime.phase == runnerEnded {
		c.SendFrames(&wire.HelloRefusal{NewestEpoch: s.serviceLink.newestEpoch})
		return false
	}
	s.serviceLink.connectLocked(c, h.Epoch)
	k, stateFrames := s.helloReplyLocked()
	frames := wire.AppendFrame(nil, k)
	if len(s.stuckAttempts) > 0 {
		frames = wire.AppendFrame(frames, &wire.StuckAttemptsReport{Attempts: s.stuckAttempts})
	}
	c.SendBytes(append(frames, stateFrames...))
	return true
}

// endingRunnerVersionSuffix is appended to the reported version of a runner that is about to end.
const endingRunnerVersionSuffix = " (ending)"

// helloReplyLocked returns the answer to a Hello, and the encoded frames to send after it. These frames contain the
// results that no service has acknowledged, and the progress of running attempts.
func (s *server) helloReplyLocked() (reply *wire.HelloReply, encodedFrames []byte) {
	reply = &wire.HelloReply{
		ProtocolVersion: wire.ProtocolVersion, RunnerVersion: s.Version, RunnerPID: int64(
			os.Getpid()), Enforcements: s.limitEnforcements(),
	}
	if s.lifetime.phase != runnerServing { // because of the changed version, the service sends no new jobs
		reply.RunnerVersion += endingRunnerVersionSuffix
	}
	for _, a := range s.attempts {
		if a.hasEnded() {
			reply.UnacknowledgedLeases = append(reply.UnacknowledgedLeases, leaseOf(a))
			encodedFrames = append(encodedFrames, a.encodedResultFrame...)
			continue
		}
		reply.UnendedAttempts = append(reply.UnendedAttempts, toWireAttempt(a))
		if a.lastSentProgress.ReportedAtMillis != 0 {
			encodedFrames = wire.AppendFrame(encodedFrames, &wire.ProgressReport{Lease: leaseOf(a),
				Progress: a.lastSentProgress})
		}
	}
	return reply, encodedFrames
}

// limitEnforcements returns, for each limit of jobs, how this runner enforces it.
func (s *server) limitEnforcements() (enforcements []wire.LimitEnforcement) {
	for _, e := range process.LimitEnforcements(s.Cgroups) {
		enforcements = append(enforcements, wire.LimitEnforcement{LimitName: e.LimitField, EnforcementExtent: int64(e.Extent),
			Mechanism: e.Mechanism})
	}
	return enforcements
}
