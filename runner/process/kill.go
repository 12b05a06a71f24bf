//go:build linux || windows

package process

import "time"

// obey carries out the requests of Kill and Pause. Once the main process has ended, Kill has no effect
// any more, unless the tree is being ended.
func (r *run) obey(now time.Time) kill {
	r.w.mu.Lock()
	killed, paused := r.w.killed, r.w.pause
	r.w.pause.tells = nil
	if r.exited && r.termAt.IsZero() && !killed.asked {
		r.w.running = false
	}
	r.w.mu.Unlock()
	if killed.asked && (r.termAt.IsZero() || now.Add(killed.grace).Before(r.killAt)) {
		r.terminate(now, killed.grace)
	}
	r.heedPause(paused)
	return killed
}

// due returns when the rest of a tree that is being ended gets SIGKILL. If the tree has got SIGKILL
// already, the rest ends soon, so due is not later than graceEnd.
func (r *run) due() time.Time {
	if !r.killedAt.IsZero() && r.graceEnd.Before(r.killAt) {
		return r.graceEnd
	}
	return r.killAt
}
