package process

import (
	"sync"
	"time"
)

// Limits of looks at all processes, of which each costs some 10 µs a process.
// See docs/decisions/0040.
const (
	// lookShare is how many times as long as a look took none follows: whatever many commands
	// leave behind, to look for it takes a fifth of one processor, or more where lookRest is
	// less than that.
	lookShare = 4
	// lookRest is the longest time that none follows: with thousands of processes, or on a busy
	// machine, a look takes long, and ends of commands are not to wait for much longer.
	lookRest = 100 * time.Millisecond
)

// processes are those of the machine, for all who look for what commands have left behind.
var processes lookout

// lookout has those who look at once share a look. Its zero value is ready.
type lookout struct {
	mu     sync.Mutex
	change sync.Cond // on mu, made by the first who waits; last has changed, or nobody looks
	busy   bool      // somebody looks
	begun  int       // looks that have begun
	last   *look
	after  time.Time // no look begins before
}

// look is what one look has seen: each process, at a moment between its begin and its end.
type look struct {
	number int // of this look, from 1
	procs  []proc
	real   map[int]uint32 // real user ids, by pid

	mu      sync.Mutex
	cookies map[int]string // by pid, of those that were asked for; guarded by mu
}

// now is what was seen by a look that began after the call.
func (o *lookout) now() *look {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.change.L == nil {
		o.change.L = &o.mu
	}
	for mine := o.begun + 1; o.last == nil || o.last.number < mine; {
		if o.busy {
			o.change.Wait()
			continue
		}
		o.busy = true
		rest := time.Until(o.after)
		o.mu.Unlock()
		time.Sleep(rest)
		o.mu.Lock()
		o.begun++
		number := o.begun
		o.mu.Unlock()
		began := time.Now()
		l := newLook(number)
		took := time.Since(began)
		o.mu.Lock()
		o.last, o.busy, o.after = l, false, time.Now().Add(min(lookShare*took, lookRest))
		o.change.Broadcast()
	}
	return o.last
}

func newLook(number int) *look {
	procs := all()
	l := &look{number: number, procs: procs, real: make(map[int]uint32, len(procs)), cookies: map[int]string{}}
	for _, p := range procs {
		if real, _, ok := uidsOf(p.pid); ok {
			l.real[p.pid] = real
		}
	}
	return l
}

// owns reports whether a process is an account's, see Owns.
func (l *look) owns(uid uint32, pid int) bool {
	real, ok := l.real[pid]
	return ok && real == uid
}

// cookie is the one that a process shows, see cookieOf.
func (l *look) cookie(pid int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, known := l.cookies[pid]
	if !known {
		c = cookieOf(pid)
		l.cookies[pid] = c
	}
	return c
}
