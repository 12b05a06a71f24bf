//go:build linux || windows

package process

import "time"

// If a tree has not fully frozen or resumed within freezeWithin, it is tried again after againFirst.
// The delay doubles up to againLast.
const (
	freezeWithin = 2 * time.Second
	againFirst   = time.Second
	againLast    = 30 * time.Second
)

// pause holds the requests of Pause.
type pause struct {
	asked bool // Pause was called
	on    bool
	tells []func(left int, ok bool) // callbacks that have not been called yet
}

// Pause freezes the whole tree of the running command and stops its timeouts, or resumes both. It calls
// tell, which must not block, with the number of processes that still run after a freeze, or are still
// stopped after a resume. Processes that still run are frozen again until none is left. ok is false if
// the command has ended or is being ended, because an ending tree is resumed.
func (w *Worker) Pause(on bool, tell func(left int, ok bool)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.running || w.killed.asked {
		tell(0, false)
		return
	}
	w.pause.asked, w.pause.on, w.pause.tells = true, on, append(w.pause.tells, tell)
	w.interrupt()
}

// standstill is the state of a pause that was carried out.
type standstill struct {
	on    bool
	since time.Duration // start of the pause, as time since the start of the command
	stood time.Duration // total length of earlier pauses
	left  int           // processes that still ran after the last freeze
	again time.Time     // time of the next freeze; zero if no process still ran
	wait  time.Duration // current delay between two freezes
}

// ran returns how long the command has run, without its pauses.
func (r *run) ran() time.Duration {
	if r.still.on {
		return r.still.since - r.still.stood
	}
	return r.elapsed() - r.still.stood
}

// heedPause freezes or resumes the tree, as the latest Pause asked, and calls the waiting callbacks. It
// leaves a tree that is being ended alone.
func (r *run) heedPause(p pause) {
	ends, left := r.exited || !r.termAt.IsZero(), 0
	switch {
	case ends || !p.asked:
	case p.on:
		if again := r.still.again; !r.still.on || !again.IsZero() && (len(p.tells) > 0 || !time.Now().Before(again)) {
			r.standStill()
		}
		left = r.still.left
	case r.still.on:
		left = r.goOn()
	}
	for _, tell := range p.tells {
		tell(left, !ends)
	}
}

// standStill freezes the tree and stops its timeouts.
func (r *run) standStill() {
	s := &r.still
	if !s.on {
		s.on, s.since, s.wait = true, r.elapsed(), againFirst
	}
	s.left, s.again = r.freezeTree(time.Now().Add(freezeWithin)), time.Time{}
	if s.left > 0 {
		s.again = time.Now().Add(s.wait)
		s.wait = min(2*s.wait, againLast)
	}
}

// goOn resumes the tree and its timeouts. It returns how many processes are still stopped.
func (r *run) goOn() (left int) {
	if !r.still.on {
		return 0
	}
	left = r.thawTree(time.Now().Add(freezeWithin))
	stood := r.elapsed() - r.still.since
	r.still = standstill{stood: r.still.stood + stood}
	r.heardLater(stood)
	return left
}

// endAsked reports whether Kill was called. If so, there is no need to freeze the tree.
func (r *run) endAsked() bool {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	return r.w.killed.asked
}

// unpause reports the end of the command to the callbacks that still wait. The caller holds w.mu.
func (w *Worker) unpause() {
	for _, tell := range w.pause.tells {
		tell(0, false)
	}
	w.pause = pause{}
}
