package daemon

import (
	"os"
	"slices"
	"time"

	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// addAttemptLocked adds the attempt of a Start frame to the waiting attempts.
func (s *server) addAttemptLocked(f *wire.Start) {
	if s.attempts[f.Lease] != nil || s.life.phase != phaseServing || s.leases.hasExpiredLocked() || len(f.Argv) == 0 ||
		(s.accounts != nil) != (f.UID >= 0) {
		// Ignore the frame: each lease is started at most once. A runner of root ignores a frame that names no
		// account, and every other runner ignores a frame that names one.
		return
	}
	a := &attempt{startFrame: f}
	a.outputLog = output.New(f.OutputLimitBytes, func() (*os.File, error) {
		return os.CreateTemp(s.dir.path, "log-*")
	})
	s.attempts[f.Lease] = a
	s.insertWaitingAttemptLocked(a)
	s.workers.cond.Signal()
}

// insertWaitingAttemptLocked adds an attempt to the list of waiting attempts. In this list, the attempts of each
// queue are sorted by Position. The service decides how the queues alternate, so an attempt can only take
// the index of another attempt of the same queue. The new attempt takes the index of the first attempt of
// its queue that starts after it. That attempt takes the index of the next one of the queue, and so on.
//
// For example, the list a3 b1 a5 (queue and position) and the new attempt a2 result in a2 b1 a3 a5.
func (s *server) insertWaitingAttemptLocked(a *attempt) {
	s.waitingAttempts = append(s.waitingAttempts, a)
	at := len(s.waitingAttempts) - 1
	for i := at - 1; i >= 0; i-- {
		other := s.waitingAttempts[i]
		if other.startFrame.Queue != a.startFrame.Queue {
			continue
		}
		if a.startFrame.Position.Compare(other.startFrame.Position) >= 0 { // if equal, the one received first starts first
			return
		}
		s.waitingAttempts[i], s.waitingAttempts[at] = a, other
		at = i
	}
}

// isPastDeadline reports whether one of the two deadlines for starting the attempt has passed.
func (a *attempt) isPastDeadline() bool {
	notAfter, bootDeadline := a.startFrame.DeadlineMillis, a.startFrame.BootDeadlineMillis
	return notAfter != 0 && time.Now().UnixMilli() >= notAfter ||
		bootDeadline != 0 && runner.TimeSinceBoot().Milliseconds() >= bootDeadline
}

// hasNoWaitingAttempt reports whether no attempt waits for a worker.
func (s *server) hasNoWaitingAttempt() bool {
	s.mu.Lock()
	none := len(s.waitingAttempts) == 0
	s.mu.Unlock()
	return none
}

// dropAttemptLocked answers a Drop request: it removes the attempt if no worker has taken it.
func (s *server) dropAttemptLocked(f *wire.Drop) {
	dropped := s.attempts[f.Lease] == nil
	if i := slices.IndexFunc(s.waitingAttempts, func(a *attempt) bool { return leaseOf(a) == f.Lease }); i >= 0 {
		s.discardAttemptLocked(s.waitingAttempts[i])
		s.waitingAttempts = slices.Delete(s.waitingAttempts, i, i+1)
		dropped = true
	}
	s.sendLocked(&wire.DropReply{Lease: f.Lease, Dropped: dropped}, true)
}

// discardWaitingAttemptsLocked removes all attempts that no worker has taken.
func (s *server) discardWaitingAttemptsLocked() {
	for _, a := range s.waitingAttempts {
		s.discardAttemptLocked(a)
	}
	s.waitingAttempts = nil
}

// discardAttemptLocked removes an attempt that was never started, and wakes readers that wait for its output.
func (s *server) discardAttemptLocked(a *attempt) {
	delete(s.attempts, leaseOf(a))
	a.outputLog.Discard()
}
