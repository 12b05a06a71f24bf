package daemon

import (
	"time"

	"github.com/queuectl/queuectl/runner/privdir"
)

// workDir is the private directory that a worker gives to its attempts, one after the other.
type workDir struct {
	*privdir.Dir
	lastAttemptEndedAt time.Time // end of the worker's last attempt
}

// A worker normally removes the private directory when an attempt ends. But creating and removing a directory takes a
// fifth of the time of a short job. So if the attempt did not use the directory, the worker keeps it for the next
// attempt in two cases: the attempt started within maxWorkDirReuseGap after the previous attempt ended, or other
// attempts are waiting. If no next attempt comes, the worker removes the directory idleWorkDirRemoveDelay after its
// last attempt ended.
const (
	maxWorkDirReuseGap     = time.Millisecond
	idleWorkDirRemoveDelay = 50 * time.Millisecond
)

// removeIdleWorkDirLocked removes the private directory of an idle worker if the worker's last attempt ended at least
// idleWorkDirRemoveDelay ago. Otherwise it schedules a wake-up of the idle workers. It reports whether it has removed
// the directory. It releases mu during the removal.
func (s *server) removeIdleWorkDirLocked(dir *workDir) bool {
	if time.Since(dir.lastAttemptEndedAt) < idleWorkDirRemoveDelay {
		if s.idleWorkDirTimer == nil {
			s.idleWorkDirTimer = time.AfterFunc(idleWorkDirRemoveDelay, func() {
				s.mu.Lock()
				s.workers.wakeUp.Broadcast()
				s.mu.Unlock()
			})
		}
		s.idleWorkDirTimer.Reset(idleWorkDirRemoveDelay)
		return false
	}
	s.mu.Unlock()
	dir.RemoveIfEmpty()
	s.mu.Lock()
	return true
}
