package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/output"
)

// Worker runs one command after another. Create it with NewWorker. One goroutine calls Run; any
// goroutine may call Kill.
type Worker struct {
	systemCalls      *systemCalls
	nullDeviceHandle windows.Handle // handle of NUL, which is empty input
	wakeEventHandle  windows.Handle // event that wakes the goroutine of Run
	outputBuffers    [2][]byte      // for reads of standard output and standard error

	mu sync.Mutex
	// isRunning means that a call of Kill has an effect: either the main process runs, or its tree is being ended and the
	// grace period is not over.
	isRunning bool
	tree      *processTree // tree of the running command
	kill      killRequest  // latest request of Kill
	pause     pauseRequest // requests of SetAttemptPaused

	stuckTree *processTree // tree that the last Run could not end; used only by the goroutine of Run
}

// NewWorker returns a worker. It opens no resources before its first command.
func NewWorker(*Cgroups) *Worker { return &Worker{systemCalls: &realSystemCalls} }

// openResources opens the resources that the worker keeps from its first command on.
func (w *Worker) openResources() (err error) {
	if w.nullDeviceHandle == 0 {
		if w.nullDeviceHandle, err = openInheritableFile("NUL", windows.GENERIC_READ, 0); err != nil {
			return fmt.Errorf("cannot open NUL: %w", err)
		}
	}
	if w.wakeEventHandle == 0 {
		if w.wakeEventHandle, err = windows.CreateEvent(nil, 0, 0, nil); err != nil {
			return fmt.Errorf("cannot create an event: %w", err)
		}
		w.outputBuffers = [2][]byte{make([]byte, pipeBufferBytes), make([]byte, pipeBufferBytes)}
	}
	return nil
}

// Close releases the worker's resources.
func (w *Worker) Close() {
	closeHandles(w.nullDeviceHandle, w.wakeEventHandle)
	w.closeStuckTree()
}

// closeHandles closes handles. It skips handles that are 0.
func closeHandles(handles ...windows.Handle) {
	for _, h := range handles {
		if h != 0 {
			windows.CloseHandle(h)
		}
	}
}

// Signals that have an equivalent on Windows.
const (
	sigint   = 2
	sigkill  = 9
	sigterm  = 15
	sigbreak = 21
)

// Signal sends a signal to the whole tree of the running command. mainPID is the main process of the command. If it has
// ended, Signal does nothing. Windows has few signals: SIGINT, SIGTERM and SIGBREAK are sent as CTRL_BREAK, and SIGKILL
// ends the tree. Other signals are ignored.
func (w *Worker) Signal(mainPID int, _ string, signal int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.isRunning || w.tree == nil || int(w.tree.mainPID) != mainPID {
		return
	}
	switch signal {
	case sigint, sigterm, sigbreak:
		w.systemCalls.sendCtrlBreak(w.tree.mainPID)
	case sigkill:
		w.tree.kill()
	}
}

// isLimiterStarting returns false. Commands on Windows need no limiter process to set their limits, because
// the limits of a job object apply from the start.
func (*runningCommand) isLimiterStarting() bool { return false }

// runningCommand is the state of one command that is running.
type runningCommand struct {
	runState
	tree                *processTree
	stdinPipe           *os.File       // write end of the pipe for standard input; nil if the command has no input text
	outputPipes         [2]*os.File    // read ends of the pipes for standard output and standard error
	ioGoroutines        sync.WaitGroup // goroutines that read the output and write the input
	pipeEOFSignals      chan struct{}  // receives one value for each pipe at end of file
	openPipeCount       int            // number of pipes not yet at end of file
	awakeTimeAtStart    time.Duration  // time of the start, on a clock that stops while the machine sleeps
	hasPrintedOutput    atomic.Bool    // the command has printed something
	ctrlBreakFailed     bool           // CTRL_BREAK could not be sent
	handleProgressAgain bool           // HandleProgress must be called again, although there are no new notes

	suspendedProcesses map[uint32]windows.Handle // handles of the processes that freezeTree has suspended, by pid
}

// wakeRun wakes the goroutine of Run.
func (w *Worker) wakeRun() { windows.SetEvent(w.wakeEventHandle) }

func (w *Worker) newRun(c *Command, result *Result) *runningCommand {
	return &runningCommand{runState: runState{worker: w, command: c, result: result}, pipeEOFSignals: make(chan struct{},
		2)}
}

// markRunning marks the worker as running a command.
func (w *Worker) markRunning(*Command) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isRunning, w.tree, w.kill, w.pause = true, nil, killRequest{}, pauseRequest{}
}

// close closes the handles of the run. This unblocks the goroutines that read and write, even if another
// process keeps a pipe open.
func (r *runningCommand) close() {
	for _, f := range []*os.File{r.stdinPipe, r.outputPipes[0], r.outputPipes[1]} {
		if f != nil {
			f.Close() // the goroutine that writes the input may have closed it already
		}
	}
	r.ioGoroutines.Wait()
	r.worker.mu.Lock()
	defer r.worker.mu.Unlock()
	// A wake-up for this run must not wake the next run.
	if r.worker.kill.wasRequested || r.worker.pause.wasRequested {
		windows.ResetEvent(r.worker.wakeEventHandle)
	}
	r.worker.failPendingPauses()
	for _, h := range r.suspendedProcesses {
		windows.CloseHandle(h)
	}
	r.worker.tree = nil
	if r.tree != nil && r.tree != r.worker.stuckTree {
		r.tree.close()
	}
}

// superviseMainProcess waits until the main process has ended. It enforces timeouts and carries out kills and
// pauses.
func (r *runningCommand) superviseMainProcess() {
	events := []windows.Handle{r.tree.mainHandle, r.worker.wakeEventHandle}
	for !r.mainProcessExited {
		event, err := windows.WaitForMultipleObjects(events, false, r.pollTimeoutMillis())
		if err != nil {
			panic("process: wait: " + err.Error()) // the handles are valid: only this goroutine closes them
		}
		r.mainProcessExited = event == windows.WAIT_OBJECT_0
		r.tree.readJobMessages()
		r.performDueActions()
	}
}

// pollTimeoutMillis returns the time until the run must act next, in milliseconds, or INFINITE.
func (r *runningCommand) pollTimeoutMillis() uint32 {
	next := r.timeUntilNextAction()
	if r.tree.messagePort != 0 && (next < 0 || next > time.Second) {
		next = time.Second // read the messages of the job object every second
	}
	if next < 0 {
		return windows.INFINITE
	}
	return uint32(ceilMilliseconds(next))
}

// terminateTree sends CTRL_BREAK to the process group of the main process. It also sets sigkillDueAt, the time at which
// the job object, and so the whole tree, is ended. This time is after the grace period, or now if CTRL_BREAK could not
// be sent.
func (r *runningCommand) terminateTree(now time.Time, gracePeriod time.Duration) {
	if r.sigtermSentAt.IsZero() {
		if gracePeriod > 0 {
			r.resumeTree()
			now = time.Now()
		}
		// While the handle of the main process is open, Windows does not reuse its pid, which is also the id of its
		// group.
		r.ctrlBreakFailed = r.worker.systemCalls.sendCtrlBreak(r.tree.mainPID) != nil
		r.sigtermSentAt = now
	}
	if r.ctrlBreakFailed {
		gracePeriod = 0
	}
	r.sigkillDueAt = now.Add(gracePeriod)
}

// readPipe reads the output pipe with this index until end of file.
func (r *runningCommand) readPipe(pipeIndex int) {
	for {
		n, err := r.outputPipes[pipeIndex].Read(r.worker.outputBuffers[pipeIndex])
		if n > 0 {
			r.hasPrintedOutput.Store(true)
			r.lastOutputNanos.Store(int64(r.elapsed()))
			r.command.OutputLog.Append(output.Stream(pipeIndex), time.Now().UnixMilli(), r.worker.outputBuffers[pipeIndex][:n])
		}
		if errors.Is(err, io.EOF) && isPipeOpen(r.outputPipes[pipeIndex]) {
			continue // after a write of zero bytes, Read returns as at end of file, but the pipe is still open
		}
		if err != nil {
			r.pipeEOFSignals <- struct{}{}
			return
		}
	}
}
