package process

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// orphans tells which processes were reparented to this one. They are children
// of its main thread, which the kernel lists in one small file; the trees' main
// processes may be there too.
// See docs/decisions/0040.
var orphans = newOrphanage()

func newOrphanage() *orphanage {
	o := &orphanage{main: map[int]int{}, kept: map[int]int64{}, aside: map[int]bool{}}
	o.changed.L = &o.mu
	return o
}

// orphanage never waits for a fork: one may hang for as long as a user's file system or
// lease has it hang.
type orphanage struct {
	once   sync.Once
	fd     [2]int       // the list, opened for noOrphans and for look
	reaped atomic.Int64 // how many orphans were reaped, or are about to be

	mu      sync.Mutex     // guards all below
	main    map[int]int    // by pid, the forks that made the main processes that are not reaped
	kept    map[int]int64  // by pid, when what may live on started, in clock ticks since boot
	aside   map[int]bool   // orphans that show no cookie
	next    int            // number of the next fork
	forks   []forking      // under way, in any order
	paused  bool           // new forks wait
	changed sync.Cond      // paused, or no fork is under way any more
	ended   map[int]zombie // by pid, what has ended and may be the child of a fork under way
	buffer  []byte         // of look, nil before the first
}

// forking is a fork under way.
type forking struct {
	number int
	began  time.Time
}

// zombie is a process that has ended and is not known to be an orphan.
type zombie struct {
	ticks int64 // when it started
	next  int   // number of the next fork when it was first seen: it is of no later one
}

// begin numbers a fork that is about to be made.
func (o *orphanage) begin() (fork int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.paused {
		o.changed.Wait()
	}
	o.next++
	o.forks = append(o.forks, forking{o.next - 1, time.Now()})
	return o.next - 1
}

// end ends a fork. Its child, if pid is not 0, is a main process, which its worker reaps.
func (o *orphanage) end(fork, pid int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forks = slices.DeleteFunc(o.forks, func(f forking) bool { return f.number == fork })
	if o.paused && len(o.forks) == 0 {
		o.changed.Broadcast()
	}
	if pid != 0 {
		o.main[pid] = fork
		delete(o.aside, pid)
	}
}

// oldest is the number of the oldest fork under way, of the next one if there is none. The
// caller holds mu.
func (o *orphanage) oldest() int {
	oldest := o.next
	for _, f := range o.forks {
		oldest = min(oldest, f.number)
	}
	return oldest
}

// reap takes the end of a main process; ok is false as long as there is none to take. The
// next fork may be given the number before it is given up here, so it is only as this one's.
func (o *orphanage) reap(pid int) (status unix.WaitStatus, usage unix.Rusage, ok bool, err error) {
	o.mu.Lock()
	fork, known := o.main[pid]
	o.mu.Unlock()
	status, usage, ok, err = reapNow(pid)
	if !ok || !known {
		return status, usage, ok, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.main[pid] == fork {
		delete(o.main, pid)
	}
	return status, usage, ok, err
}

// list reads as much of the list as fits into the buffer: the kernel returns a page of it at a time. A page begins at
// the first digit of a number only if the last read of the same open file returned the page before it. So noOrphans and
// look have an open file each: file is 0 or 1. ok is false where the system keeps no list.
func (o *orphanage) list(file int, buf []byte) (list []byte, ok bool) {
	o.once.Do(func() {
		pid := os.Getpid()
		for i := range o.fd {
			o.fd[i], _ = unix.Open(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
	})
	filled := 0
	for filled < len(buf) {
		n, err := unix.Pread(o.fd[file], buf[filled:], int64(filled))
		if err != nil || n < 0 {
			return nil, false
		}
		if n == 0 {
			break
		}
		filled += n
	}
	return buf[:filled], true
}

// look reaps the orphans that have ended and lists those that have not and may not live on,
// and those that showed no cookie when they were last looked at. What may be the child of a
// fork under way, which its forker reaps, stays until that fork has ended. Of a list that is longer than the buffer the
// next look reads twice as much.
func (o *orphanage) look() (living, aside []int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.buffer == nil {
		o.buffer = make([]byte, firstListed)
	}
	list, _ := o.list(1, o.buffer)
	if len(list) == len(o.buffer) { // the last number may be cut
		list = list[:bytes.LastIndexByte(list, ' ')+1]
		o.buffer = make([]byte, min(2*len(o.buffer), maxListed))
	}
	oldest, before := o.oldest(), o.ended
	o.ended = map[int]zombie{}
	for field := range bytes.FieldsSeq(list) {
		pid, err := strconv.Atoi(string(field))
		if _, main := o.main[pid]; main || err != nil {
			continue
		}
		_, kept := o.kept[pid]
		switch {
		case hasEnded(pid):
			if oldest == o.next || o.older(pid, oldest, before) {
				o.reaped.Add(1) // before its end cannot be seen any more
				reapNow(pid)
				delete(o.kept, pid)
				delete(o.aside, pid)
			}
		case o.aside[pid]:
			aside = append(aside, pid)
		case !kept:
			living = append(living, pid)
		}
	}
	return living, aside
}

// A look reads this many bytes of the list at first, some 9,000 orphans, and never more than maxListed.
const (
	firstListed = 64 << 10
	maxListed   = 32 << 20 // for all 4,194,304 processes that Linux can have
)

// older reports whether a process that has ended was there before the oldest fork under way,
// and notes it if not. The caller holds mu.
func (o *orphanage) older(pid, oldest int, before map[int]zombie) bool {
	p, ok := stat(pid)
	z, known := before[pid]
	if !ok || !known || z.ticks != p.ticks {
		z = zombie{p.ticks, o.next}
	}
	if z.next <= oldest {
		return true
	}
	o.ended[pid] = z
	return false
}

// keep notes what may live on after its command.
func (o *orphanage) keep(left []proc) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range left {
		o.kept[p.pid] = p.ticks
	}
}

// forget forgets what was kept and has ended, of which others have reaped their children.
func (o *orphanage) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for pid, ticks := range o.kept {
		if p, ok := stat(pid); !ok || p.ticks != ticks {
			delete(o.kept, pid)
		}
	}
}

// isMain reports whether a process is a main one that is not reaped.
func (o *orphanage) isMain(pid int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, main := o.main[pid]
	return main
}

// setAside has orphans looked for no more, until recall.
func (o *orphanage) setAside(list []proc) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range list {
		o.aside[p.pid] = true
	}
}

func (o *orphanage) recall(pid int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.aside, pid)
}

// hasEnded reports whether a child has ended, and leaves it as it is.
func hasEnded(pid int) bool {
	_, ended := endOf(pid)
	return ended
}

// noOrphans reports whether no process at all was reparented to this one. It
// costs one system call.
func noOrphans() bool {
	var buf [16]byte
	list, ok := orphans.list(0, buf[:])
	return ok && len(list) == 0
}

// reapOrphans reaps the orphans that have ended and lists those that have not
// and may not live on.
func reapOrphans() (living []int) {
	living, aside := orphans.look()
	for _, pid := range aside {
		if cookieOf(pid) != "" { // it was in the middle of an exec
			orphans.recall(pid)
			living = append(living, pid)
		}
	}
	return living
}

// execTime is how long a process is waited for that shows no environment: in the
// middle of an exec it has none for a moment.
const execTime = 20 * time.Millisecond

// nameless lists an account's living orphans that show no cookie and are of no tree's
// session or group: of a tree in the middle of an exec, or of none that can be told.
func nameless(uid uint32) (list []proc) {
	for _, pid := range reapOrphans() {
		p, ok := stat(pid)
		if ok && p.alive() && !orphans.isMain(p.pgid) && !orphans.isMain(p.sid) && Owns(uid, pid) && cookieOf(pid) == "" {
			list = append(list, p)
		}
	}
	return list
}

// Reap reaps orphans that have ended, and forgets what ended of trees that might live on;
// call it now and then. It reports whether there may be more to reap soon: it has reaped some, or
// could not tell whether one that has ended is the child of a fork under way.
func Reap() (more bool) {
	before := orphans.reaped.Load()
	reapOrphans()
	orphans.mu.Lock()
	more = orphans.reaped.Load() != before || len(orphans.ended) > 0
	orphans.mu.Unlock()
	orphans.forget()
	background.forget()
	return more
}
