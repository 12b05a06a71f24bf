//go:build linux || windows

package process

import "time"

// How long a tree may take to stand still, or to go on, and how long it is not looked at again
// where it did not: at first, and at most.
const (
	freezeWithin = 2 * time.Second
	againFirst   = time.Second
	againLast    = 30 * time.Second
)

// pause is what Pause has asked for.
type pause struct {
	asked bool // something was
	on    bool
	tells []func(left int, ok bool) // who asked and has not been told
}

// Pause freezes the running command's whole tree, and with it its timeouts, or has it go on. tell,
// which must not wait, hears how many processes still run, or are still stopped: these are looked
// at again until there are none. ok is false if the command has ended, or is being ended, for
// which its tree goes on.
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

// standstill is the pause of a command under way.
type standstill struct {
	on    bool
	since time.Duration // of what has elapsed of the run, as the next
	stood time.Duration // in earlier pauses
	left  int           // processes that still ran when the tree was looked at last
	again time.Time     // it is looked at again; zero if there were none
	wait  time.Duration // until then
}

// ran is how long the command has run, without its pauses.
func (r *run) ran() time.Duration {
	if r.still.on {
		return r.still.since - r.still.stood
	}
	return r.elapsed() - r.still.stood
}

// heedPause has the tree stand still or go on, as was asked last, and tells those who asked. A
// tree that is being ended goes on.
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

// standStill freezes the tree, with its clocks.
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

// goOn has the tree go on, with its clocks. It returns how many processes are still stopped.
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

// endAsked reports whether Kill was called: then the tree need not be frozen.
func (r *run) endAsked() bool {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	return r.w.killed.asked
}

// unpause tells those who asked for a pause that the command has ended. The caller holds the
// worker's mu.
func (w *Worker) unpause() {
	for _, tell := range w.pause.tells {
		tell(0, false)
	}
	w.pause = pause{}
}
