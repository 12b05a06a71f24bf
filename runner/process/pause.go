//go:build linux || windows

package process

import "time"

// If some processes of a tree still run after freezeTimeout, Run freezes them again after firstFreezeRetryDelay.
// The delay doubles each time, up to maxFreezeRetryDelay.
const (
	freezeTimeout         = 2 * time.Second
	firstFreezeRetryDelay = time.Second
	maxFreezeRetryDelay   = 30 * time.Second
)

// pauseRequest is the latest request of SetPaused, with the callbacks of all calls that have not been answered.
type pauseRequest struct {
	wasRequested    bool // SetPaused was called
	wantsPause      bool
	onDoneCallbacks []func(unchangedCount int, ok bool) // callbacks of SetPaused that have not been called yet
}

// SetPaused freezes the whole tree of the running command and stops its timeouts. With paused=false, SetPaused resumes
// the tree and the timeouts. Afterwards, it calls onDone, which must not block. unchangedCount is the number of
// processes that still run after a freeze, or are still stopped after a resume. If processes still run after a freeze,
// Run freezes the tree again later. ok is false if the command has ended or is being ended. SetPaused then does not
// change the tree.
func (w *Worker) SetPaused(paused bool, onDone func(unchangedCount int, ok bool)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.isRunning || w.kill.wasRequested {
		onDone(0, false)
		return
	}
	w.pause.wasRequested, w.pause.wantsPause, w.pause.onDoneCallbacks = true, paused,
		append(w.pause.onDoneCallbacks, onDone)
	w.wakeRun()
}

// pauseState describes the current pause of a run and the earlier ones.
type pauseState struct {
	isPaused             bool
	pauseStartOffset     time.Duration // time from the start of the command to the start of the current pause
	earlierPausesTotal   time.Duration // total length of earlier pauses
	unfrozenProcessCount int           // number of processes that still ran after the last freeze
	freezeRetryAt        time.Time     // time of the next freeze; zero if the last freeze stopped all processes
	freezeRetryDelay     time.Duration // current delay between two freezes
}

// runTime returns how long the command has run, without the time of its pauses.
func (r *runningCommand) runTime() time.Duration {
	if r.pause.isPaused {
		return r.pause.pauseStartOffset - r.pause.earlierPausesTotal
	}
	return r.elapsed() - r.pause.earlierPausesTotal
}

// applyPause freezes or resumes the tree, as the latest call of SetPaused requests, and calls all pending callbacks. It
// does not change a tree that is being ended.
func (r *runningCommand) applyPause(p pauseRequest) {
	ending, unchanged := r.mainProcessExited || !r.sigtermSentAt.IsZero(), 0
	switch {
	case ending || !p.wasRequested:
	case p.wantsPause:
		if retryAt := r.pause.freezeRetryAt; !r.pause.isPaused ||
			!retryAt.IsZero() && (len(p.onDoneCallbacks) > 0 || !time.Now().Before(retryAt)) {
			r.pauseTree()
		}
		unchanged = r.pause.unfrozenProcessCount
	case r.pause.isPaused:
		unchanged = r.resumeTree()
	}
	for _, callback := range p.onDoneCallbacks {
		callback(unchanged, !ending)
	}
}

// pauseTree freezes the tree and stops the command's timeouts.
func (r *runningCommand) pauseTree() {
	s := &r.pause
	if !s.isPaused {
		s.isPaused, s.pauseStartOffset, s.freezeRetryDelay = true, r.elapsed(), firstFreezeRetryDelay
	}
	s.unfrozenProcessCount, s.freezeRetryAt = r.freezeTree(time.Now().Add(freezeTimeout)), time.Time{}
	if s.unfrozenProcessCount > 0 {
		s.freezeRetryAt = time.Now().Add(s.freezeRetryDelay)
		s.freezeRetryDelay = min(2*s.freezeRetryDelay, maxFreezeRetryDelay)
	}
}

// resumeTree resumes the tree and the command's timeouts. It returns how many processes are still stopped.
func (r *runningCommand) resumeTree() (stoppedCount int) {
	if !r.pause.isPaused {
		return 0
	}
	stoppedCount = r.thawTree(time.Now().Add(freezeTimeout))
	paused := r.elapsed() - r.pause.pauseStartOffset
	r.pause = pauseState{earlierPausesTotal: r.pause.earlierPausesTotal + paused}
	// A pause does not count as time without output. So move the time of the last output forward by the length of the
	// pause.
	r.lastOutputNanos.Store(min(r.lastOutputNanos.Load()+int64(paused), int64(r.elapsed())))
	return stoppedCount
}

// isKillRequested reports whether Kill was called. If so, freezing the tree is unnecessary.
func (r *runningCommand) isKillRequested() bool {
	r.worker.mu.Lock()
	defer r.worker.mu.Unlock()
	return r.worker.kill.wasRequested
}

// failPendingPauses calls the pending callbacks of SetPaused with ok=false, because the command has ended. The caller
// holds w.mu.
func (w *Worker) failPendingPauses() {
	for _, callback := range w.pause.onDoneCallbacks {
		callback(0, false)
	}
	w.pause = pauseRequest{}
}
