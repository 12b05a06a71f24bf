package process

import (
	"bytes"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A tree without a control group that can be frozen gets SIGSTOP, each process of it, until two
// looks in a row have found none that runs. The signal to a whole group reaches what is being
// forked just then as well (fork(2) begins anew if a signal is pending), so it is what stops a
// tree that forks all the time.
// See docs/decisions/0048.
const (
	calmLooks = 2
	// groupsFrom is the look from which on whole groups beside the main one are signalled: what
	// they have in them has outrun signals to each.
	groupsFrom = 2
)

// freezeTree has the tree stand still, and says how many processes still run at the deadline.
func (r *run) freezeTree(deadline time.Time) (left int) {
	if b := r.w.cgroup; b != nil && b.freeze(true) {
		r.frozen = true
		for pause := time.Millisecond / 10; !b.stands(true); pause = min(2*pause, 10*time.Millisecond) {
			if r.endAsked() || time.Now().After(deadline) {
				runs, _ := running(b.procs(0), nil)
				return max(1, len(runs))
			}
			time.Sleep(pause)
		}
		return 0
	}
	told, doubt := map[proc]bool{}, time.Time{}
	for look, calm := 0, 0; calm < calmLooks; look++ {
		unix.Kill(-r.pid, unix.SIGSTOP) // the main process is not reaped, so the group is ours
		seen, tree := r.look()
		runs, waits := running(tree, told)
		if len(runs) > 0 && (r.endAsked() || time.Now().After(deadline)) {
			return len(runs)
		}
		if len(runs) > 0 || doubt.IsZero() {
			doubt = time.Now()
		}
		if len(runs) == 0 && (waits || r.unsure()) && time.Since(doubt) < 5*execTime { // what is in the middle of a fork or an exec shows itself after it
			time.Sleep(execTime / 4)
			continue
		}
		calm++
		for _, p := range runs {
			calm = 0
			send(p, unix.SIGSTOP, nil)
			told[proc{pid: p.pid, ticks: p.ticks}] = true
		}
		if look >= groupsFrom {
			for _, group := range groupsOf(runs, tree, seen) {
				unix.Kill(-group, unix.SIGSTOP)
			}
		}
	}
	return 0
}

// thawTree has the tree go on, and says how many processes are still stopped at the deadline.
func (r *run) thawTree(deadline time.Time) (left int) {
	if b := r.w.cgroup; r.frozen && b != nil {
		r.frozen = false
		b.freeze(false)
		for pause := time.Millisecond / 10; !b.stands(false) && time.Now().Before(deadline); pause = min(2*pause, 10*time.Millisecond) {
			time.Sleep(pause)
		}
		return 0
	}
	for calm := 0; calm < calmLooks; calm++ {
		unix.Kill(-r.pid, unix.SIGCONT)
		_, tree := r.look()
		left = 0
		for _, p := range tree {
			if p.state == 'T' {
				send(p, unix.SIGCONT, nil)
				left++
			}
		}
		if left > 0 {
			calm = -1
		}
		if time.Now().After(deadline) {
			return left // what stops itself again
		}
	}
	return 0
}

// look looks at all processes, and lists the tree's, with the main one.
func (r *run) look() (seen, tree []proc) {
	main, ok := stat(r.pid)
	if b := r.w.cgroup; b != nil {
		tree = b.procs(r.pid)
	} else {
		l := processes.now()
		seen, tree = l.procs, treeIn(l, r.pid, r.c.Cookie, r.c.uid())
	}
	if ok && main.alive() {
		tree = append(tree, main)
	}
	return seen, tree
}

// running lists those of some processes that run, and says whether any waits in the kernel that was
// told to stop: it will before it runs again, but may be in the middle of a fork. The caller of a
// vfork waits so for as long as its child stands still.
func running(procs []proc, told map[proc]bool) (list []proc, waits bool) {
	for _, p := range procs {
		switch {
		case p.state == 'T' || p.state == 't':
		case p.state == 'D' && told[proc{pid: p.pid, ticks: p.ticks}]:
			waits = true
		default:
			list = append(list, p)
		}
	}
	return list, waits
}

// groupsOf lists the process groups of what runs, of those that have no member outside of the
// tree.
func groupsOf(runs, tree, seen []proc) (list []int) {
	ours, mixed := map[int]bool{}, map[int]bool{}
	for _, p := range tree {
		ours[p.pid] = true
	}
	for _, p := range seen {
		if p.alive() && !ours[p.pid] {
			mixed[p.pgid] = true
		}
	}
	for _, p := range runs {
		if p.pgid > 1 && !mixed[p.pgid] {
			list = append(list, p.pgid)
			mixed[p.pgid] = true
		}
	}
	return list
}

// elapsed is how long ago the command was started.
func (r *run) elapsed() time.Duration { return time.Since(r.begun) }

// heardLater has the command have printed so much later than it did, but not after now.
func (r *run) heardLater(by time.Duration) {
	r.heard = r.heard.Add(by)
	if now := time.Now(); r.heard.After(now) {
		r.heard = now
	}
}

// freeze has the kernel freeze all that is in the group and below it, or let it go on; it reports
// whether that could be asked (Linux 5.2).
func (b *cgroup) freeze(on bool) bool {
	what := "0"
	if on {
		what = "1"
	}
	return os.WriteFile(b.path+"/cgroup.freeze", []byte(what), 0) == nil
}

// stands reports whether all that is in the group is frozen, or is not any more.
func (b *cgroup) stands(frozen bool) bool {
	var buf [64]byte
	n, err := unix.Pread(b.events, buf[:], 0)
	return err == nil && bytes.Contains(buf[:n], []byte("frozen 1")) == frozen
}
