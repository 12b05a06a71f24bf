package daemon

import (
	"os"
	"slices"
	"time"

	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// addWaitingAttemptLocked adds the attempt of a Start frame to the waiting attempts.
func (s *server) addWaitingAttemptLocked(f *wire.StartAttempt) {
	if s.attempts[f.Lease] != nil || s.lifetime.phase != runnerServing || s.leaseExpiry.haveLeasesExpiredLocked() ||
		len(f.Argv) == 0 ||
		(s.accounts != nil) != (f.AccountUID >= 0) {
		// Ignore the frame: each lease is started at most once. A runner of root ignores a frame that names no
		// account, and every other runner ignores a frame that names one.
		return
	}
	a := &attempt{startFrame: f}
	a.outputLog = output.NewLog(f.OutputLimitBytes, func() (*os.File, error) {
		return os.CreateTemp(s.dir.dirPath, "log-*")
	})
	s.attempts[f.Lease] = a
	s.insertWaitingAttemptLocked(a)
	s.workers.wakeUp.Signal()
}

// insertWaitingAttemptLocked adds an attempt to the list of waiting attempts. Within the list, the attempts of one
// queue are sorted by Position. The service has decided in which order the queues alternate, so the attempts of other
// queues keep their indexes in the list. The new attempt gets the index of the first attempt of the same queue with a
// later Position. That attempt moves to the index of the next attempt of the queue, and so on. The last attempt of the
// queue moves to the end of the list.
//
// For example, the list is a3 b1 a5 (queue and position). Inserting a2 results in a2 b1 a3 a5.
func (s *server) insertWaitingAttemptLocked(a *attempt) {
	s.waitingAttempts = append(s.waitingAttempts, a)
	at := len(s.waitingAttempts) - 1
	for i := at - 1; i >= 0; i-- {
		other := s.waitingAttempts[i]
		if other.startFrame.Queue != a.startFrame.Queue {
			continue
		}
		if a.startFrame.Position.Compare(other.startFrame.Position) >= 0 { // if equal, keep the order of arrival
			return
		}
		s.waitingAttempts[i], s.waitingAttempts[at] = a, other
		at = i
	}
}

// isPastStartDeadline reports whether it is too late to start the attempt. An attempt can have two deadlines: one as
// wall-clock time, and one as time since boot.
func (a *attempt) isPastStartDeadline() bool {
	notAfter, bootDeadline := a.startFrame.StartDeadlineMillis, a.startFrame.StartDeadlineBootMillis
	return notAfter != 0 && time.Now().UnixMilli() >= notAfter ||
		bootDeadline != 0 && runner.TimeSinceBoot().Milliseconds() >= bootDeadline
}

// hasNoWaitingAttempt reports whether workers have taken all attempts that the service has sent.
func (s *server) hasNoWaitingAttempt() bool {
	s.mu.Lock()
	none := len(s.waitingAttempts) == 0
	s.mu.Unlock()
	return none
}

// dropAttemptLocked handles the service's request to cancel the start of an attempt. If no worker has taken the
// attempt, dropAttemptLocked removes the attempt. It replies whether the runner no longer has the attempt.
func (s *server) dropAttemptLocked(f *wire.DropStart) {
	dropped := s.attempts[f.Lease] == nil
	if i := slices.IndexFunc(s.waitingAttempts, func(a *attempt) bool { return leaseOf(a) == f.Lease }); i >= 0 {
		s.discardAttemptLocked(s.waitingAttempts[i])
		s.waitingAttempts = slices.Delete(s.waitingAttempts, i, i+1)
		dropped = true
	}
	s.sendFrameLocked(&wire.DropStartReply{Lease: f.Lease, StartDropped: dropped}, true)
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
