package process

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/output"
)

// Worker runs one command after another. Make it with NewWorker; Run is for one
// goroutine, Kill for any.
type Worker struct {
	null   int // /dev/null
	wake   int // eventfd: Kill interrupts the poll
	buffer []byte

	mu      sync.Mutex
	running bool   // until the main process has ended or, where the tree is being ended, its grace has
	pid     int    // of the main process
	uid     uint32 // it runs as
	killed  kill   // asked for by Kill
	pause   pause  // asked for by Pause
	typist  typist // of the running command's terminal, if it has one

	stuck []proc // what Run has given up; of its goroutine

	session       bool          // each command gets a session of its own
	cgroups       *Cgroups      // nil if there are none
	limiterWithin time.Duration // a command's limiter may take

	cgroup *cgroup // nil before the first command; written with mu by Run's goroutine
}

// NewWorker makes a worker, whose commands get a control group if there are any. It
// holds nothing until its first command.
func NewWorker(c *Cgroups) *Worker {
	return &Worker{null: -1, wake: -1, session: !autogroups(), cgroups: c, limiterWithin: limiterWithin}
}

// autogroups reports whether the kernel makes a group of its own for each session's share of
// the processors (sched(7)): a session for each command would then cost 4 % of a drain.
// See docs/decisions/0045.
var autogroups = sync.OnceValue(func() bool {
	raw, err := os.ReadFile("/proc/sys/kernel/sched_autogroup_enabled")
	return err == nil && strings.TrimSpace(string(raw)) != "0"
})

// open takes what the worker holds from its first command on.
func (w *Worker) open() (err error) {
	if w.null < 0 {
		if w.null, err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return &shortageError{fmt.Errorf("open /dev/null: %w", err)}
		}
	}
	if w.wake < 0 {
		if w.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			return &shortageError{fmt.Errorf("create an eventfd: %w", err)}
		}
		w.buffer = make([]byte, 64<<10)
	}
	if w.cgroups != nil && w.cgroup == nil {
		b, err := w.cgroups.cgroup()
		if err != nil {
			return &shortageError{fmt.Errorf("create a control group: %w", err)}
		}
		w.setCgroup(b)
	}
	return nil
}

func (w *Worker) setCgroup(b *cgroup) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cgroup = b
}

// dropCgroup gives the control group up, because processes stay in it.
func (w *Worker) dropCgroup() {
	if b := w.cgroup; b != nil {
		w.setCgroup(nil)
		w.cgroups.drop(b)
	}
}

// tree lists the living processes of the running command's tree, the main one excepted.
func (w *Worker) tree(main int, cookie string) []proc {
	w.mu.Lock()
	b, uid := w.cgroup, w.uid
	w.mu.Unlock()
	if b != nil {
		return b.procs(main)
	}
	return treeOf(main, cookie, uid)
}

// Close gives back what the worker holds.
func (w *Worker) Close() {
	for _, fd := range []int{w.null, w.wake} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	w.dropCgroup()
}

// signalPasses is how often a tree is looked at for processes that have not had a signal yet:
// it may fork meanwhile.
const signalPasses = 8

// Signal sends a signal, once, to each process of the running command's tree that the
// command's account may signal, if pid is still the command's main process. A tree that
// forks without end may have processes that do not get it.
func (w *Worker) Signal(pid int, cookie string, number int) {
	had := map[proc]bool{}
	for range signalPasses {
		w.mu.Lock()
		current, uid := w.running && w.pid == pid, w.uid
		if w.pause.on && unix.Signal(number) == unix.SIGCONT { // which it gets once it goes on
			current = false
		}
		w.mu.Unlock()
		main, ok := stat(pid)
		if !current || !ok {
			return
		}
		news := false
		for _, p := range append([]proc{main}, w.tree(pid, cookie)...) {
			key := proc{pid: p.pid, ticks: p.ticks}
			if had[key] {
				continue
			}
			had[key], news = true, true
			send(p, unix.Signal(number), func() bool { return maySignal(uid, p.pid) })
		}
		if !news {
			return
		}
	}
}

// maySignal reports whether an account may signal a process, as kill(2) decides.
func maySignal(uid uint32, pid int) bool {
	real, saved, ok := uidsOf(pid)
	return ok && (uid == 0 || real == uid || saved == uid)
}

// uid is whom the command runs as.
func (c *Command) uid() uint32 {
	if c.As != nil {
		return c.As.UID
	}
	return ownUID()
}

// ownUID is whom this process runs as, which does not change once it runs commands.
var ownUID = sync.OnceValue(func() uint32 { return uint32(os.Getuid()) })

// run is one command under way.
type run struct {
	w        *Worker
	c        *Command
	r        *Result
	path     string // of the program, "" until it is found
	pid      int
	pidfd    int
	pipes    [2]int    // read ends; -1 once at their end
	limiter  *limiting // nil if the command needs none
	ends     [2]int    // write ends: while they are open, only output and the exit wake the poll
	begun    time.Time
	forked   time.Time // right before the main process was made
	heard    time.Time // when it last printed
	told     bool
	still    standstill
	frozen   bool // by its control group
	exited   bool
	empty    bool        // the pipes were, at the last look
	reaped   int64       // how many orphans had been before that look
	termAt   time.Time   // SIGTERM was sent
	killAt   time.Time   // SIGKILL is due
	killedAt time.Time   // SIGKILL was sent for the first time
	graceEnd time.Time   // what is left behind is ended
	baton    sync.Mutex  // whoever holds it has the run: Run's goroutine, or who stands in for it
	guard    *time.Timer // of a call that may wait, nil before the first one
	standing bool        // another goroutine stands in
	over     bool        // which has seen the end
	noteAt   time.Time   // a look at the notes is due; zero while the poll tells of them
}

// interrupt ends the poll of Run's goroutine. The caller holds mu.
func (w *Worker) interrupt() {
	unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // cannot fail but when it is set already
}

// newRun prepares a run.
func (w *Worker) newRun(c *Command, result *Result) *run {
	r := &run{w: w, c: c, r: result, pipes: [2]int{-1, -1}, ends: [2]int{-1, -1}, pidfd: -1}
	r.baton.Lock()
	return r
}

// occupy makes the worker one that runs a command.
func (w *Worker) occupy(c *Command) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running, w.pid, w.uid, w.killed, w.pause, w.typist = true, 0, c.uid(), kill{}, pause{}, typist{tty: c.TTY}
}

// close gives back what the run holds.
func (r *run) close() {
	defer collect()
	r.letGo()
	r.limiter.close()
	if r.r.Spared || r.r.StuckPID != 0 || r.r.Traced {
		go closePipes(r.pipes) // what lives may have them locked, and the result does not wait for it
	} else {
		closePipes(r.pipes)
	}
	if r.pidfd >= 0 {
		closePidfd(r.pidfd)
	}
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if r.w.killed.asked || r.w.pause.asked || r.c.TTY { // it must not wake the next run
		var drain [8]byte
		unix.Read(r.w.wake, drain[:])
	}
	r.w.unpause()
}

func closePipes(pipes [2]int) {
	for _, fd := range pipes {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// letGo closes our write ends, so that the pipes end with those of the tree.
// See docs/decisions/0039.
func (r *run) letGo() {
	for i, fd := range r.ends {
		if fd >= 0 {
			unix.Close(fd)
			r.ends[i] = -1
		}
	}
}

// watch reads the output until the main process has ended, enforcing the
// timeout and carrying out kills.
func (r *run) watch() {
	for !r.exited {
		fds := [6]unix.PollFd{
			{Fd: int32(r.pidfd), Events: unix.POLLIN}, // first: what the process printed and noted before its end is there by then
			{Fd: int32(r.pipes[0]), Events: unix.POLLIN},
			{Fd: int32(r.pipes[1]), Events: unix.POLLIN},
			{Fd: int32(r.w.wake), Events: unix.POLLIN},
			{Fd: r.talk(), Events: unix.POLLIN},
			{Fd: r.noteFD(), Events: unix.POLLIN},
		}
		if r.c.TTY && r.passOn() {
			fds[1].Events |= unix.POLLOUT
		}
		r.reaped = orphans.reaped.Load()
		n, err := unix.Poll(fds[:], r.wait())
		if err != nil && err != unix.EINTR {
			panic("process: poll: " + err.Error()) // the descriptors are ours and open
		}
		if n > 0 {
			r.empty = fds[1].Revents|fds[2].Revents == 0
			r.readReady([2]unix.PollFd(fds[1:3]))
			if fds[3].Revents != 0 {
				var drain [8]byte
				unix.Read(r.w.wake, drain[:])
			}
			if fds[4].Revents != 0 {
				r.hearLimiter()
			}
			r.exited = r.exited || fds[0].Revents != 0
			if fds[5].Revents != 0 {
				r.noteAt = time.Now()
				r.note(r.noteAt)
			}
		}
		r.boundLimiter()
		if !r.over {
			r.enforce()
		}
	}
}

// wait is how long the poll may take, in milliseconds: until the next deadline.
func (r *run) wait() int {
	next := r.untilDue()
	if r.begins() && !r.limiter.hung {
		if d := max(0, r.w.limiterWithin-r.ran()); next < 0 || d < next {
			next = d
		}
	}
	if next < 0 {
		return -1
	}
	return int(milliseconds(next))
}

// silent is for how long it has printed nothing.
func (r *run) silent() time.Duration { return time.Since(r.heard) }

// terminate asks the tree to end; a stopped process is woken to hear it.
func (r *run) terminate(now time.Time, grace time.Duration) {
	if r.termAt.IsZero() {
		var away []proc
		if grace > 0 { // looked for first: what a process starts so as to end well is not asked
			away = slices.DeleteFunc(r.left(), func(p proc) bool { return p.pgid == r.pid })
			now = time.Now()
		}
		unix.Kill(-r.pid, unix.SIGTERM) // the main process is not reaped, so the group is ours
		unix.Kill(-r.pid, unix.SIGCONT)
		if r.c.TTY && heedsHangup(r.pid) {
			unix.Kill(r.pid, unix.SIGHUP)
		}
		for _, p := range away {
			send(p, unix.SIGTERM, nil)
			send(p, unix.SIGCONT, nil)
		}
		if grace > 0 && r.still.on { // SIGKILL ends what is frozen as well
			r.goOn()
			now = time.Now()
		}
		r.termAt = now
	}
	r.killAt = now.Add(grace)
}

// read takes what a pipe holds, at most a buffer full, and returns how many bytes it took.
func (r *run) read(i int) (n int) {
	var err error
	r.mayWait(func() { n, err = unix.Read(r.pipes[i], r.w.buffer) })
	if err == unix.EINTR || err == unix.EAGAIN {
		return 0
	}
	if n <= 0 {
		unix.Close(r.pipes[i])
		r.pipes[i] = -1
		return 0
	}
	r.heard = time.Now()
	if r.c.TTY {
		r.w.printed(r.w.buffer[:n])
	}
	r.c.Log.Append(output.Stream(i), r.heard.UnixMilli(), r.w.buffer[:n])
	return n
}
