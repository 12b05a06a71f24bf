//go:build linux || windows

package process

import "time"

// obey carries out what Kill and Pause have asked for. From the end of the main process on it is too late
// for a Kill, unless the tree is being ended.
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

// due is when what is left of a tree that is being ended gets SIGKILL. What has had it
// already is gone in a moment.
func (r *run) due() time.Time {
	if !r.killedAt.IsZero() && r.graceEnd.Before(r.killAt) {
		return r.graceEnd
	}
	return r.killAt
}
