package process

import (
	"bytes"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// If the tree has no control group that can be frozen, every process of the tree gets SIGSTOP. This is
// repeated until two scans in a row have found no running process. A signal to a whole process group
// also reaches processes that are being forked, because fork(2) starts again if a signal is pending. So
// only the signal to the group stops a tree that forks all the time. See docs/decisions/0048.
const (
	calmLooks = 2
	// groupsFrom is the first scan, counted from 0, after which whole process groups other than the
	// main one are signalled. Their processes have outrun the signals to single processes.
	groupsFrom = 2
)

// freezeTree freezes the tree. It returns how many processes still run at the deadline.
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
		unix.Kill(-r.pid, unix.SIGSTOP) // the main process is not reaped, so its group id is not reused
		seen, tree := r.look()
		runs, waits := running(tree, told)
		if len(runs) > 0 && (r.endAsked() || time.Now().After(deadline)) {
			return len(runs)
		}
		if len(runs) > 0 || doubt.IsZero() {
			doubt = time.Now()
		}
		// A process in the middle of a fork or an exec shows itself later.
		if len(runs) == 0 && (waits || r.unsure()) && time.Since(doubt) < 5*execTime {
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

// thawTree resumes the tree. It returns how many processes are still stopped at the deadline.
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
			return left // processes that stop themselves again
		}
	}
	return 0
}

// look scans all processes (seen). It also returns those of the tree, including the main one.
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

// running returns the processes that run. A process that was sent SIGSTOP but waits in the kernel stops
// before it runs again, but it may be in the middle of a fork; waits reports whether there is one. The
// caller of a vfork waits in this way while its child is stopped.
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

// groupsOf returns the process groups of running processes that have no member outside of the tree.
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

// elapsed returns the time since the command was started.
func (r *run) elapsed() time.Duration { return time.Since(r.begun) }

// heardLater moves the time of the last output forward by a duration, but not beyond now.
func (r *run) heardLater(by time.Duration) {
	r.heard = r.heard.Add(by)
	if now := time.Now(); r.heard.After(now) {
		r.heard = now
	}
}

// freeze freezes or resumes the group and its subgroups. It reports whether the kernel supports that
// (Linux 5.2).
func (b *cgroup) freeze(on bool) bool {
	what := "0"
	if on {
		what = "1"
	}
	return os.WriteFile(b.path+"/cgroup.freeze", []byte(what), 0) == nil
}

// stands reports whether the frozen state of the group equals frozen.
func (b *cgroup) stands(frozen bool) bool {
	var buf [64]byte
	n, err := unix.Pread(b.events, buf[:], 0)
	return err == nil && bytes.Contains(buf[:n], []byte("frozen 1")) == frozen
}
