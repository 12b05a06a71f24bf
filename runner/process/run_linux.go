package process

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/runner/procfs"
	"github.com/queuectl/queuectl/runner/runas"
)

// Worker runs one command after another. Create it with NewWorker. One goroutine calls Run; any
// goroutine may call Kill.
type Worker struct {
	nullDeviceHandle int    // descriptor of /dev/null
	wakeEventHandle  int    // eventfd that ends the poll of Run's goroutine
	outputBuffer     []byte // for reads of output

	mu sync.Mutex
	// isRunning means that a call of Kill has an effect: either the main process runs, or its tree is being ended and the
	// grace period is not over.
	isRunning bool
	pid       int              // pid of the main process
	uid       uint32           // account that the command runs as
	kill      killRequest      // latest request of Kill
	pause     pauseRequest     // requests of SetAttemptPaused
	terminal  terminalRequests // pending requests for the running command's terminal, if it has one

	stuckProcesses []procfs.Process // processes that the last Run could not end; used only by the goroutine of Run

	startsCommandsInSessions bool          // start each command in a new session
	cgroups                  *Cgroups      // nil if control groups are unavailable
	limiterTimeout           time.Duration // how long a limiter may take to execute the command

	cgroup *cgroup // nil if the worker has none; the goroutine of Run writes it, with mu held
}

// NewWorker returns a worker. If c is not nil, the worker's commands run in a control group. The
// worker opens no resources before its first command.
func NewWorker(c *Cgroups) *Worker {
	return &Worker{nullDeviceHandle: -1, wakeEventHandle: -1, startsCommandsInSessions: !hasAutogroups(), cgroups: c,
		limiterTimeout: limiterTimeout}
}

// hasAutogroups reports whether the kernel creates a scheduling group for each session (sched(7)). If the kernel does,
// starting each command in a new session makes short commands 4 % slower. See docs/decisions/0045.
var hasAutogroups = sync.OnceValue(func() bool {
	raw, err := os.ReadFile("/proc/sys/kernel/sched_autogroup_enabled")
	return err == nil && strings.TrimSpace(string(raw)) != "0"
})

// openResources opens the worker's resources before its first command. The worker keeps them until Close.
func (w *Worker) openResources() (err error) {
	if w.nullDeviceHandle < 0 {
		if w.nullDeviceHandle, err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return &runas.ResourceShortageError{Err: fmt.Errorf("cannot open /dev/null: %w", err)}
		}
	}
	if w.wakeEventHandle < 0 {
		if w.wakeEventHandle, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			return &runas.ResourceShortageError{Err: fmt.Errorf("cannot create an eventfd: %w", err)}
		}
		w.outputBuffer = make([]byte, 64<<10)
	}
	if w.cgroups != nil && w.cgroup == nil {
		b, err := w.cgroups.newCgroup()
		if errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("the kernel allows no more of them (see /proc/cgroups): %w", err)
		}
		if err != nil {
			return &runas.ResourceShortageError{Err: fmt.Errorf("cannot create a control group: %w", err)}
		}
		w.setCgroup(b)
	}
	return nil
}

func (w *Worker) setCgroup(group *cgroup) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cgroup = group
}

// abandonCgroup stops using the worker's control group, for example because it may still contain processes.
// The next command gets a new group.
func (w *Worker) abandonCgroup() {
	if b := w.cgroup; b != nil {
		w.setCgroup(nil)
		w.cgroups.abandonGroup(b)
	}
}

// otherTreeProcesses lists the living processes of the running command's tree, except the main process.
func (w *Worker) otherTreeProcesses(mainPID int, cookie string) []procfs.Process {
	w.mu.Lock()
	b, uid := w.cgroup, w.uid
	w.mu.Unlock()
	if b != nil {
		return b.listProcesses(mainPID)
	}
	return listTreeProcesses(mainPID, cookie, uid)
}

// Close releases the worker's resources.
func (w *Worker) Close() {
	closeDescriptors(&w.nullDeviceHandle, &w.wakeEventHandle)
	w.abandonCgroup()
}

// maxSignalScans limits how many times Signal scans the tree for processes that have not received the signal.
// New processes may appear between two scans.
const maxSignalScans = 8

// Signal sends a signal once to each process of the running command's tree that the command's account may signal.
// mainPID is the main process of the command. If it has ended, Signal does nothing. In a tree that forks all the time,
// Signal may miss some processes.
func (w *Worker) Signal(mainPID int, cookie string, signal int) {
	signalled := map[procfs.Process]bool{}
	for range maxSignalScans {
		w.mu.Lock()
		current, uid := w.isRunning && w.pid == mainPID, w.uid
		// Do not send SIGCONT to a paused tree, because it would run during the pause. The tree gets SIGCONT at the end of
		// the pause.
		if w.pause.wantsPause && unix.Signal(signal) == unix.SIGCONT {
			current = false
		}
		w.mu.Unlock()
		main, ok := procfs.Stat(mainPID)
		if !current || !ok {
			return
		}
		added := false
		for _, p := range append([]procfs.Process{main}, w.otherTreeProcesses(mainPID, cookie)...) {
			key := procfs.Process{PID: p.PID, StartTicks: p.StartTicks}
			if signalled[key] {
				continue
			}
			signalled[key], added = true, true
			sendSignal(p, unix.Signal(signal), func() bool { return mayAccountSignal(uid, p.PID) })
		}
		if !added {
			return
		}
	}
}

// mayAccountSignal reports whether kill(2) allows the account with this uid to signal a process.
func mayAccountSignal(uid uint32, pid int) bool {
	real, saved, ok := procfs.UIDs(pid)
	return ok && (uid == 0 || real == uid || saved == uid)
}

// uid returns the account that the command runs as.
func (c *Command) uid() uint32 {
	if c.RunAs != nil {
		return c.RunAs.UID
	}
	return uint32(os.Getuid())
}

// runningCommand is the state of one command that is running.
type runningCommand struct {
	runState
	programPath string          // path of the program; "" until it is found
	pid         int             // pid of the main process
	pidfd       int             // descriptor of the main process (pidfd_open(2))
	outputPipes [2]int          // read ends for standard output and standard error; -1 after end of file
	limiter     *limiterProcess // nil if the command needs none
	// pipeWriteEnds are this process's write ends of the pipes. They are open while the main process runs, so
	// that poll(2) reports no end of file.
	pipeWriteEnds         [2]int
	forkedAt              time.Time // time right before the main process was created
	cgroupFrozen          bool      // the control group has frozen the tree
	pipesEmptyAtLastPoll  bool      // the pipes were empty at the last poll
	reapedCountBeforePoll int64     // value of globalOrphanTable.reapedCount before the last poll
	// guards the run; held by the goroutine of Run or of performActionsWhileBlocked
	runLock                     sync.Mutex
	blockedCallTimer            *time.Timer // starts performActionsWhileBlocked if a call blocks; nil before the first one
	performsActionsWhileBlocked bool        // performActionsWhileBlocked is performing due actions
	mainExitSeenWhileBlocked    bool        // performActionsWhileBlocked has seen the end of the main process
}

// wakeRun ends the poll of Run's goroutine. The caller holds mu.
func (w *Worker) wakeRun() {
	unix.Write(w.wakeEventHandle, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only if the eventfd is already set
}

// clearWakeEvent resets the eventfd that wakeRun has set.
func (w *Worker) clearWakeEvent() {
	var count [8]byte
	unix.Read(w.wakeEventHandle, count[:])
}

// newRun prepares a run.
func (w *Worker) newRun(c *Command, result *Result) *runningCommand {
	r := &runningCommand{runState: runState{worker: w, command: c, result: result}, outputPipes: [2]int{-1, -1},
		pipeWriteEnds: [2]int{-1, -1}, pidfd: -1}
	r.runLock.Lock()
	return r
}

// markRunning marks the worker as running a command.
func (w *Worker) markRunning(c *Command) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isRunning, w.pid, w.uid = true, 0, c.uid()
	w.kill, w.pause, w.terminal = killRequest{}, pauseRequest{}, terminalRequests{hasTerminal: c.TTY}
}

// close releases the descriptors of the run, and calls the callbacks of SetAttemptPaused that have not been called yet.
func (r *runningCommand) close() {
	defer collectGarbageIfDue()
	r.closeWriteEnds()
	r.limiter.close()
	if r.result.HasBackgroundProcesses || r.result.StuckPID != 0 || r.result.ExitHeldByTracer {
		// Closing a pipe blocks if a surviving process has locked the pipe. So close the pipes in the
		// background.
		pipes := r.outputPipes // a copy, so that a blocked close does not keep the run in memory
		go closeDescriptors(&pipes[0], &pipes[1])
	} else {
		closeDescriptors(&r.outputPipes[0], &r.outputPipes[1])
	}
	closeDescriptors(&r.pidfd)
	r.worker.mu.Lock()
	defer r.worker.mu.Unlock()
	// A wake-up for this run may still be in the eventfd, and must not wake the next run.
	if r.worker.kill.wasRequested || r.worker.pause.wasRequested || r.command.TTY {
		r.worker.clearWakeEvent()
	}
	r.worker.failPendingPauses()
}

// closeDescriptors closes descriptors and sets them to -1. It skips descriptors that are already -1.
func closeDescriptors(fds ...*int) {
	for _, fd := range fds {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// closeWriteEnds closes this process's write ends of the pipes. A pipe then reaches end of file when all
// processes of the tree have closed it. See docs/decisions/0039.
func (r *runningCommand) closeWriteEnds() { closeDescriptors(&r.pipeWriteEnds[0], &r.pipeWriteEnds[1]) }

// pollIn returns the entry with which poll(2) waits until a descriptor is readable or closed. poll(2) ignores an
// entry with the descriptor -1.
func pollIn(fd int) unix.PollFd { return unix.PollFd{Fd: int32(fd), Events: unix.POLLIN} }

// superviseMainProcess reads the command's output until the main process has ended. It enforces timeouts and
// carries out kills and pauses.
func (r *runningCommand) superviseMainProcess() {
	for !r.mainProcessExited {
		fds := [6]unix.PollFd{
			// poll(2) checks the descriptors in this order. So if it reports the end of the main process, it
			// also reports all output and progress notes that the process wrote before.
			pollIn(r.pidfd),
			pollIn(r.outputPipes[0]),
			pollIn(r.outputPipes[1]),
			pollIn(r.worker.wakeEventHandle),
			pollIn(r.limiterSocketFD()),
			pollIn(r.progressFD()),
		}
		if r.command.TTY && r.handleTerminalRequests() {
			fds[1].Events |= unix.POLLOUT
		}
		r.reapedCountBeforePoll = globalOrphanTable.reapedCount.Load()
		n, err := unix.Poll(fds[:], r.pollTimeoutMillis())
		if err != nil && err != unix.EINTR {
			panic("process: poll: " + err.Error()) // the descriptors are always valid
		}
		if n > 0 {
			r.pipesEmptyAtLastPoll = fds[1].Revents|fds[2].Revents == 0
			r.readReadyPipes(fds[1:3])
			if fds[3].Revents != 0 {
				r.worker.clearWakeEvent()
			}
			if fds[4].Revents != 0 {
				r.readLimiterReport()
			}
			r.mainProcessExited = r.mainProcessExited || fds[0].Revents != 0
			if fds[5].Revents != 0 {
				r.nextProgressReadAt = time.Now()
				r.readProgress(r.nextProgressReadAt)
			}
		}
		r.killSlowLimiter()
		if !r.mainExitSeenWhileBlocked {
			r.performDueActions()
		}
	}
}

// pollTimeoutMillis returns the time until the run must act next, in milliseconds, or -1 if no action is
// planned.
func (r *runningCommand) pollTimeoutMillis() int {
	next := r.timeUntilNextAction()
	if r.isLimiterStarting() && !r.limiter.timedOut {
		if d := max(0, r.worker.limiterTimeout-r.runTime()); next < 0 || d < next {
			next = d
		}
	}
	if next < 0 {
		return -1
	}
	return int(ceilMilliseconds(next))
}

// terminateTree sends SIGTERM to the tree, and plans SIGKILL for the end of the grace period. It resumes stopped
// processes, so that they can handle SIGTERM.
func (r *runningCommand) terminateTree(now time.Time, gracePeriod time.Duration) {
	if r.sigtermSentAt.IsZero() {
		var otherProcesses []procfs.Process
		// List the processes outside the main process group before sending SIGTERM to the group. On SIGTERM, the command may
		// start processes that it needs to end cleanly. These new processes must not get SIGTERM, so they must not be in the
		// list.
		if gracePeriod > 0 {
			otherProcesses = slices.DeleteFunc(r.remainingProcesses(), func(p procfs.Process) bool { return p.PGID == r.pid })
			now = time.Now()
		}
		unix.Kill(-r.pid, unix.SIGTERM) // the main process is not reaped yet, so its group id cannot be reused
		unix.Kill(-r.pid, unix.SIGCONT)
		if r.command.TTY && needsHangup(r.pid) {
			unix.Kill(r.pid, unix.SIGHUP)
		}
		for _, p := range otherProcesses {
			sendSignal(p, unix.SIGTERM, nil)
			sendSignal(p, unix.SIGCONT, nil)
		}
		// A frozen tree must be resumed to handle SIGTERM. Without a grace period this is not needed: SIGKILL
		// also ends frozen processes.
		if gracePeriod > 0 && r.pause.isPaused {
			r.resumeTree()
			now = time.Now()
		}
		r.sigtermSentAt = now
	}
	r.sigkillDueAt = now.Add(gracePeriod)
}

// readPipe reads once from the output pipe with this index, at most as much as fits into the buffer. It returns the
// number of bytes that it has read.
func (r *runningCommand) readPipe(pipeIndex int) (n int) {
	var err error
	r.callPipeOperation(func() { n, err = unix.Read(r.outputPipes[pipeIndex], r.worker.outputBuffer) })
	if err == unix.EINTR || err == unix.EAGAIN {
		return 0
	}
	if n <= 0 {
		closeDescriptors(&r.outputPipes[pipeIndex])
		return 0
	}
	now := time.Now()
	r.lastOutputNanos.Store(int64(now.Sub(r.startedAt)))
	if r.command.TTY {
		r.worker.recordTerminalModes(r.worker.outputBuffer[:n])
	}
	r.command.OutputLog.Append(output.Stream(pipeIndex), now.UnixMilli(), r.worker.outputBuffer[:n])
	return n
}
