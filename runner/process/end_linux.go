package process

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/queue"
)

// end finishes the run once the main process has ended. It reads the rest of the output, ends leftover
// processes, and reaps the main process.
func (r *run) end() {
	if r.r.StuckPID != 0 {
		r.w.dropCgroup()
		return
	}
	forced := !r.termAt.IsZero()
	if !forced {
		r.goOn() // not a kill, but something else ended the main process of a frozen tree
	}
	r.graceEnd = time.Now().Add(r.c.OutputGrace)
	switch {
	case forced || !r.alone():
		r.leave(forced)
	case !r.empty || r.reaped != orphans.reaped.Load():
		r.rest() // no process of the tree lives, so no more output can follow
	}
	usage, ok := r.reap()
	if !ok {
		r.w.dropCgroup()
		return
	}
	if b := r.w.cgroup; b != nil {
		r.outOfMemory(b.oomKills())
		if r.c.Limits.Tasks != 0 {
			r.r.PeakTasks = b.peakTasks()
		}
		if r.r.Spared || b.spent {
			r.w.dropCgroup()
		}
	}
	r.r.CPU = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	if aboveOwnPeak(usage.Maxrss) {
		r.r.PeakRSS = usage.Maxrss << 10
	}
}

// ownPeak is the peak memory of this process when last read, in KiB. The peak never falls.
var ownPeak atomic.Int64

// aboveOwnPeak reports whether a command's peak of memory, in KiB, is above the peak of this process.
// The kernel counts the memory that a child shares with this process before its exec
// (setmax_mm_hiwater_rss). So a command's peak is never below that of this process, and its own peak is
// known only if it is higher.
func aboveOwnPeak(peak int64) bool {
	if peak <= ownPeak.Load() {
		return false // most commands return here, without a system call
	}
	var own unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &own) // cannot fail
	ownPeak.Store(own.Maxrss)
	return peak > own.Maxrss
}

// reap collects the exit status of the main process, which has ended. It returns ok=false if a tracer
// withholds the status for longer than Patience.
func (r *run) reap() (usage unix.Rusage, ok bool) {
	unbegun, became, limit := false, r.limiter.became(r.pid), ""
	if by, _ := endOf(r.pid); by != 0 { // most commands end with an exit code and need one system call here
		unbegun, limit = neverBegan(r.pid), limitReached(r.pid, by)
	}
	began := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		status, usage, ok, err := orphans.reap(r.pid)
		switch {
		case err != nil:
			r.r.Lost, r.r.Error = true, fmt.Sprintf("the job's exit status is unknown, because waiting for its process failed: %v", err)
		case ok && !became:
			r.notLimited(status)
		case ok && unbegun:
			r.r.HungStart, r.r.ExitCode, r.r.Error = true, 126, r.unbegun(status.Signal())
		case ok && status.Exited():
			r.r.ExitCode = int64(status.ExitStatus())
		case ok && status.Signaled():
			r.r.Signal = int(status.Signal())
			if limit != "" {
				r.r.Error = "ended by " + queue.SignalText(r.r.Signal) + limit
			}
		case time.Since(began) > r.c.Patience:
			r.letTracer()
			return usage, false
		default:
			time.Sleep(pause)
			continue
		}
		return usage, true
	}
}

// neverBegan reports whether a child that was ended by a signal, and is not reaped yet, had not
// executed its program.
func neverBegan(pid int) bool {
	p, ok := stat(pid)
	return ok && p.flags&forkNoExec != 0
}

// outOfMemory records the kernel's out-of-memory kills: whether the kernel killed the main process,
// perhaps before its program began, and whether the command had reached its own limit.
func (r *run) outOfMemory(seen oomKills) {
	r.r.MemoryLimit = seen.atLimit
	if !seen.killed || r.r.Signal != int(unix.SIGKILL) && !r.r.HungStart {
		return
	}
	r.r.OutOfMemory = true
	if r.r.HungStart {
		r.r.HungStart, r.r.ExitCode, r.r.Signal, r.r.Error = false, -1, int(unix.SIGKILL), ""
	}
}

// unbegun returns the reason why a program never began.
func (r *run) unbegun(by unix.Signal) string {
	within := StartWithin
	if r.limiter != nil {
		within = r.w.limiterWithin
	}
	if took := r.r.EndedAt.Sub(r.begun); took >= within {
		return fmt.Sprintf("start %s: not started within %v, because the disk or file server of the program, or of a file that it needs, does not respond", r.c.Argv[0], within)
	}
	return fmt.Sprintf("start %s: the new process was stopped, or ended by %s, before it could run the program", r.c.Argv[0], queue.SignalText(int(by)))
}

// alone reports whether no process of the tree is left except the main process, which has ended. With
// control groups, it also reaps orphans that have ended.
func (r *run) alone() bool {
	none := noOrphans()
	if r.w.cgroup == nil {
		return none
	}
	if !none {
		r.empty = false // an orphan may have printed since the last poll
		reapOrphans()
	}
	return r.w.cgroup.empty()
}

// left lists the living processes of the tree, except the main process.
func (r *run) left() []proc { return r.w.tree(r.pid, r.c.Cookie) }

// unsure reports whether orphans exist that may belong to this tree or to another one.
func (r *run) unsure() bool { return r.w.cgroup == nil && len(nameless(r.c.uid())) > 0 }

// kill ends the rest of the tree. With a control group, it also reaches processes that are being
// forked.
func (r *run) kill(left []proc) {
	if b := r.w.cgroup; b == nil || !b.kill() {
		endAll(left)
	}
}

// rest reads what the pipes hold. A process outside the tree may have one of the pipes open and print
// without end. After the output grace period, rest reads only what the pipes hold at that time.
func (r *run) rest() {
	unread, counted := [2]int{}, false
	for !r.closed() {
		fds := r.pollFds()
		n, err := unix.Poll(fds[:], 0)
		if err == unix.EINTR {
			continue
		}
		if n == 0 {
			return
		}
		if !counted && time.Now().After(r.graceEnd) {
			unread, counted = r.held(), true
		}
		more := !counted
		for i := range fds {
			if fds[i].Revents != 0 && (!counted || unread[i] > 0) {
				unread[i] -= r.read(i)
				more = more || unread[i] > 0
			}
		}
		if !more {
			return
		}
	}
}

// terminalHolds is an upper bound for the unread output of a terminal, in bytes. The kernel keeps 4 KiB
// in the line discipline, and 8 KiB and one write before it.
const terminalHolds = 32 << 10

// held returns an upper bound for the number of bytes in each pipe.
func (r *run) held() (n [2]int) {
	if r.c.TTY {
		return [2]int{terminalHolds, 0} // TIOCINQ counts only the bytes in the line discipline
	}
	for i, fd := range r.pipes {
		if fd >= 0 {
			r.mayWait(func() { n[i], _ = unix.IoctlGetInt(fd, unix.TIOCINQ) })
		}
	}
	return n
}

// leave ends the rest of a tree that may have leftover processes. An open pipe or an orphan is a sign
// of them. After a kill, it always searches for them.
func (r *run) leave(forced bool) {
	r.mayWait(r.letGo)
	open := r.drain(0)
	if open && !forced { // a concurrent fork of this process has a copy of the pipe until its exec
		open = r.drain(min(execTime, r.c.OutputGrace))
	}
	if open || forced || r.w.cgroup == nil && r.mayHaveLeft(reapOrphans()) || r.w.cgroup != nil && !r.w.cgroup.empty() {
		r.endLeftovers(forced)
	}
	if r.r.StuckPID == 0 {
		r.rest()
	}
}

// mayHaveLeft reports whether an orphan may belong to this tree. Orphans of other accounts belong to
// other commands.
func (r *run) mayHaveLeft(orphans []int) bool {
	return slices.ContainsFunc(orphans, func(pid int) bool { return Owns(r.c.uid(), pid) })
}

func (r *run) pollFds() [2]unix.PollFd {
	return [2]unix.PollFd{
		{Fd: int32(r.pipes[0]), Events: unix.POLLIN},
		{Fd: int32(r.pipes[1]), Events: unix.POLLIN},
	}
}

func (r *run) readReady(fds [2]unix.PollFd) {
	for i := range fds {
		if fds[i].Revents != 0 {
			r.read(i)
		}
	}
}

// drain reads until both pipes are at end of file or wait has passed. It reports whether a pipe is
// still open.
func (r *run) drain(wait time.Duration) bool {
	deadline := time.Now().Add(wait)
	for r.pipes[0] >= 0 || r.pipes[1] >= 0 {
		fds := r.pollFds()
		left := max(0, time.Until(deadline))
		n, err := unix.Poll(fds[:], int((left+time.Millisecond-1)/time.Millisecond))
		if err == unix.EINTR {
			continue
		}
		if n == 0 {
			return true
		}
		r.readReady(fds)
		if wait > 0 && time.Now().After(deadline) {
			return true // a process prints without end
		}
		if wait == 0 && time.Since(r.r.EndedAt) > r.c.OutputGrace {
			return true
		}
	}
	return false
}

// endLeftovers ends leftover processes, unless they may live on. Processes that have already got
// SIGTERM keep the rest of their grace period.
func (r *run) endLeftovers(forced bool) {
	if r.c.Background && !forced {
		r.waitTree(time.Until(r.graceEnd), r.closed)
		if r.spare() {
			return
		}
	}
	if forced {
		r.waitGrace()
	} else {
		r.waitTree(time.Until(r.graceEnd), func() bool { return false })
	}
	began, looked := time.Now(), time.Time{}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		left := r.left()
		if looked.IsZero() {
			looked = time.Now()
		}
		if len(left) == 0 && time.Since(looked) < execTime && r.unsure() {
			time.Sleep(pause)
			continue
		}
		if len(left) == 0 {
			if r.w.cgroup == nil {
				orphans.setAside(nameless(r.c.uid()))
			}
			break
		}
		if time.Since(began) > r.c.Patience {
			r.giveUp(left)
			break
		}
		r.r.Leftovers = max(r.r.Leftovers, len(left))
		r.kill(left)
		time.Sleep(pause)
		reapOrphans()
	}
	if forced {
		r.r.EndedAt = time.Now() // the end of a tree that is being ended is the end of its last process
	}
}

// spare lets the rest of the tree live on. It reports false if too many trees of the account already
// do.
func (r *run) spare() bool {
	left := r.left()
	if len(left) == 0 {
		return true
	}
	s := &spared{cookie: r.c.Cookie}
	if b := r.w.cgroup; b != nil {
		s.group = b.path
	} else {
		s.procs = left[:min(len(left), maxNoted)]
	}
	if !background.add(r.c.uid(), s) {
		r.r.Error = fmt.Sprintf("allow_background: the job's background processes were ended, because %d earlier jobs of this account still have background processes, which is the limit", maxBackground)
		return false
	}
	orphans.keep(left)
	r.r.Spared = true
	return true
}

// closed reports whether both pipes are at end of file.
func (r *run) closed() bool { return r.pipes[0] < 0 && r.pipes[1] < 0 }

// waitTree waits until the rest of the tree has ended by itself, enough returns true, or limit has
// passed. It searches for the tree again only when all processes that it knows have ended.
func (r *run) waitTree(limit time.Duration, enough func() bool) {
	var known []proc
	deadline := time.Now().Add(limit)
	for pause := time.Millisecond; time.Now().Before(deadline); pause = min(2*pause, 20*time.Millisecond) {
		r.drain(0)
		reapOrphans()
		if enough() {
			return
		}
		for len(known) > 0 && !known[0].lives() {
			known = known[1:]
		}
		if len(known) == 0 {
			if known = r.left(); len(known) == 0 && !r.unsure() {
				return
			}
		}
		time.Sleep(min(pause, time.Until(deadline)))
	}
}

// waitGrace waits until the tree has ended, at most for the rest of its grace period. After that, Kill
// has no effect any more.
func (r *run) waitGrace() {
	var doubt time.Time // since when only processes are left that may belong to another tree
	for time.Now().Before(r.due()) {
		reapOrphans()
		left := r.left()
		for _, p := range left {
			r.awaitEnd(p)
		}
		if len(left) > 0 {
			doubt = time.Time{}
			continue
		}
		now := time.Now()
		if doubt.IsZero() {
			doubt = now
		}
		if !r.unsure() || now.After(r.graceEnd) && now.Sub(doubt) > execTime {
			break
		}
		time.Sleep(execTime / 20)
	}
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.w.running = false
}

// awaitEnd reads the output of the tree until process p has ended or SIGKILL is due.
func (r *run) awaitEnd(p proc) {
	pidfd, err := unix.PidfdOpen(p.pid, 0)
	if err == unix.ESRCH {
		return
	}
	if err != nil { // no descriptor is available
		r.drain(0)
		r.obey(time.Now())
		time.Sleep(min(execTime, time.Until(r.due())))
		return
	}
	defer unix.Close(pidfd)
	for p.lives() {
		pipes := r.pollFds()
		fds := [4]unix.PollFd{pipes[0], pipes[1], {Fd: int32(pidfd), Events: unix.POLLIN}, {Fd: int32(r.w.wake), Events: unix.POLLIN}}
		wait := time.Until(r.due())
		if wait <= 0 {
			return
		}
		n, err := unix.Poll(fds[:], int(min((wait+time.Millisecond-1)/time.Millisecond, 1<<30)))
		if err != nil || n == 0 {
			continue
		}
		r.readReady([2]unix.PollFd{fds[0], fds[1]})
		if fds[3].Revents != 0 {
			var drain [8]byte
			unix.Read(r.w.wake, drain[:])
			r.obey(time.Now())
		}
	}
}

// killTree sends SIGKILL to the whole tree, including the main process. It returns the other processes.
func (r *run) killTree() []proc {
	left := r.left()
	unix.Kill(-r.pid, unix.SIGKILL) // the main process is not reaped, so its group id is not reused
	r.kill(left)
	return left
}
