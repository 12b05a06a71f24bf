package process

import (
	"sync"
	"time"
)

// Limits of scans of all processes. A scan takes about 10 µs for each process. See docs/decisions/0040.
const (
	// lookShare sets the pause after a scan, as a multiple of the duration of the scan. Scans therefore
	// use at most a fifth of one processor, however many processes the commands leave behind, unless
	// lookRest shortens the pause.
	lookShare = 4
	// lookRest is the longest pause. A scan is slow with thousands of processes or on a busy machine,
	// and commands that are ending must not wait much longer.
	lookRest = 100 * time.Millisecond
)

// processes scans the processes of this machine, for all goroutines that search for leftover processes.
var processes lookout

// lookout scans all processes. Goroutines that need a scan at the same time share one. The zero value
// is ready for use.
type lookout struct {
	mu     sync.Mutex
	change sync.Cond // last or busy has changed; its L is set to &mu on first use
	busy   bool      // a goroutine is scanning
	begun  int       // number of scans that have begun
	last   *look
	after  time.Time // no scan begins before this time
}

// look is the result of a scan. It contains the state of each process at some time during the scan.
type look struct {
	number int // number of this scan, from 1
	procs  []proc
	real   map[int]uint32 // real user id by pid

	mu      sync.Mutex
	cookies map[int]string // by pid, only those that were requested; guarded by mu
}

// now returns the result of a scan that began after the call.
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

// owns reports whether a process belongs to an account, as Owns does.
func (l *look) owns(uid uint32, pid int) bool {
	real, ok := l.real[pid]
	return ok && real == uid
}

// cookie returns the cookie of a process, as cookieOf does.
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
