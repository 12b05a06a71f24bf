//go:build linux || windows

package process

import "time"

// handleRequests carries out the requests of Kill and Pause. Once the main process has ended, later
// calls of Kill have no effect, unless the tree is being ended.
func (r *run) handleRequests(now time.Time) killRequest {
	r.w.mu.Lock()
	killed, paused := r.w.kill, r.w.pause
	r.w.pause.callbacks = nil
	if r.exited && r.termAt.IsZero() && !killed.requested {
		r.w.running = false
	}
	r.w.mu.Unlock()
	if killed.requested && (r.termAt.IsZero() || now.Add(killed.grace).Before(r.killAt)) {
		r.terminate(now, killed.grace)
	}
	r.applyPause(paused)
	return killed
}

// killDue returns the time when the rest of a tree that is being ended gets SIGKILL. If the tree has
// already got SIGKILL, the rest will end soon, so the time is not later than graceEnd.
func (r *run) killDue() time.Time {
	if !r.killedAt.IsZero() && r.graceEnd.Before(r.killAt) {
		return r.graceEnd
	}
	return r.killAt
}
