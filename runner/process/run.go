//go:build linux || windows

package process

import "time"

// kill holds the request of the latest Kill.
type kill struct {
	asked bool
	cause int
	grace time.Duration
}

// Kill ends the tree of the running command. It sends SIGTERM (CTRL_BREAK on Windows) and, after the
// grace period, SIGKILL. The grace period is for the whole tree and does not depend on when the main
// process ends. Kill reports whether it came before Run saw the command end; only then does the result
// carry the cause. A later Kill may shorten the grace period, but does not change the cause.
func (w *Worker) Kill(cause int, grace time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.running {
		return false
	}
	if !w.killed.asked {
		w.killed.cause = cause
	}
	w.killed.asked, w.killed.grace = true, grace
	w.interrupt()
	return true
}

// Run starts a command and returns when its whole tree has ended.
func (w *Worker) Run(c *Command) (result Result) {
	result.ExitCode = -1
	r := w.newRun(c, &result)
	defer c.Log.Close()
	defer r.close()
	if err := w.open(); err != nil {
		r.begun = time.Now()
		result.StartedAt = r.begun
		r.startFailed(err)
		return result
	}
	w.occupy(c)
	if !r.start() {
		w.mu.Lock()
		w.running = false
		w.mu.Unlock()
		return result
	}
	r.watch()
	r.end()
	return result
}

// untilDue returns the time until the next action for a command that does nothing by itself. It returns
// a negative duration if no action is due.
func (r *run) untilDue() time.Duration {
	next, ran := time.Duration(-1), r.ran()
	in := func(d time.Duration) {
		if d = max(0, d); next < 0 || d < next {
			next = d
		}
	}
	if !r.told && !r.begins() {
		in(StartedAfter - ran)
	}
	if r.c.Timeout > 0 && r.clocked() {
		in(r.c.Timeout - ran)
	}
	if r.c.IdleTimeout > 0 && r.clocked() {
		in(r.c.IdleTimeout - r.silent())
	}
	if again := r.still.again; !again.IsZero() && r.termAt.IsZero() {
		in(time.Until(again))
	}
	if !r.killAt.IsZero() {
		in(time.Until(r.killAt))
	}
	if due := r.noteDue(); due >= 0 {
		in(due)
	}
	return next
}

// clocked reports whether the command's timeouts are counting.
func (r *run) clocked() bool { return r.termAt.IsZero() && !r.still.on }

// milliseconds converts a duration for poll: it returns a number of milliseconds, rounded up.
func milliseconds(d time.Duration) time.Duration {
	return min((d+time.Millisecond-1)/time.Millisecond, 1<<30)
}

// enforce carries out what is due while the main process runs: kills, pauses, timeouts, notes. Only
// enforce decides whether a kill or a timeout came before the end of the command.
func (r *run) enforce() {
	now := time.Now()
	killed := r.obey(now)
	if r.exited {
		r.r.EndedAt = now
		if killed.asked && !r.r.TimedOut {
			r.r.Cause = killed.cause
		}
		return
	}
	r.note(now)
	if r.exited { // standIn saw the end while note waited
		return
	}
	ran := r.ran()
	if !r.told && !r.begins() && (ran >= StartedAfter || r.still.on) {
		r.told = true
		r.c.Started(r.r.PID, r.begun)
	}
	if r.c.Timeout > 0 && r.clocked() && ran >= r.c.Timeout {
		r.r.TimedOut = true
		r.terminate(now, r.c.KillAfter)
	}
	if r.c.IdleTimeout > 0 && r.clocked() && r.silent() >= r.c.IdleTimeout {
		r.r.TimedOut, r.r.Silent = true, true
		r.terminate(now, r.c.KillAfter)
	}
	if !r.killAt.IsZero() && !now.Before(r.killAt) {
		if r.killedAt.IsZero() {
			r.killedAt = now
		}
		left := r.killTree()
		r.killAt = now.Add(min(time.Second, r.c.Patience)) // to reach processes that were being forked
		if now.Sub(r.killedAt) >= r.c.Patience {
			r.giveUpMain(left)
			r.r.EndedAt, r.r.Cause = now, killed.cause
		}
	}
}
