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

// Worker runs one command after another. Make it with NewWorker; Run is for one
// goroutine, Kill for any.
type Worker struct {
	sys     *calls
	null    windows.Handle // NUL
	wake    windows.Handle // event: Kill interrupts the wait
	buffers [2][]byte

	mu      sync.Mutex
	running bool  // until the main process has ended or, where the tree is being ended, its grace has
	tree    *tree // what runs
	killed  kill  // asked for by Kill

	stuck *tree // what Run has given up; of its goroutine
}

type kill struct {
	asked bool
	cause int
	grace time.Duration
}

// NewWorker makes a worker. It holds nothing until its first command.
func NewWorker(*Cgroups) *Worker { return &Worker{sys: &kernel} }

// open takes what the worker holds from its first command on.
func (w *Worker) open() (err error) {
	if w.null == 0 {
		if w.null, err = openInherited("NUL", windows.GENERIC_READ, 0); err != nil {
			return fmt.Errorf("open NUL: %w", err)
		}
	}
	if w.wake == 0 {
		if w.wake, err = windows.CreateEvent(nil, 0, 0, nil); err != nil {
			return fmt.Errorf("make an event: %w", err)
		}
		w.buffers = [2][]byte{make([]byte, pipeSize), make([]byte, pipeSize)}
	}
	return nil
}

// Close gives back what the worker holds.
func (w *Worker) Close() {
	for _, h := range []windows.Handle{w.null, w.wake} {
		if h != 0 {
			windows.CloseHandle(h)
		}
	}
	w.dropStuck()
}

// Kill ends the running command's tree: CTRL_BREAK now, the end of its job object after
// the grace, which is the whole tree's, whenever its main process ends. It reports whether
// it came before the command's end was seen; the result then carries the cause. A later
// Kill may shorten the grace, not change the cause.
func (w *Worker) Kill(cause int, grace time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.running {
		return false
	}
	if !w.killed.asked {
		w.killed.cause = cause
	}
	w.killed.asked, w.killed.grace = true, grace
	windows.SetEvent(w.wake)
	return true
}

// The signals that there is something for on Windows.
const (
	sigint   = 2
	sigkill  = 9
	sigterm  = 15
	sigbreak = 21
)

// Signal sends a signal to the running command's whole tree, if pid is still the
// command's main process. What asks to end is sent as CTRL_BREAK, SIGKILL ends the
// tree, and no other can be sent.
func (w *Worker) Signal(pid int, _ string, number int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.running || w.tree == nil || int(w.tree.pid) != pid {
		return
	}
	switch number {
	case sigint, sigterm, sigbreak:
		w.sys.interrupt(w.tree.pid)
	case sigkill:
		w.tree.kill()
	}
}

// Type writes to the running command's terminal: here there are none.
func (w *Worker) Type(int, []byte) (taken int, ok bool) { return 0, false }

// Resize gives the running command's terminal another size: here there are none.
func (w *Worker) Resize(int, int, int) {}

// run is one command under way.
type run struct {
	w        *Worker
	c        *Command
	r        *Result
	tree     *tree
	input    *os.File       // of text; nil if there is none
	pipes    [2]*os.File    // of the output
	loops    sync.WaitGroup // that read and feed
	ended    chan struct{}  // a pipe is at its end
	open     int            // pipes that are not
	begun    time.Time
	from     time.Duration // when it began, by the clock that stands while the machine sleeps
	heard    atomic.Int64  // when it last printed, since then
	told     bool
	exited   bool
	termAt   time.Time // CTRL_BREAK was sent
	unasked  bool      // or could not be
	killAt   time.Time // the end of the job object is due
	killedAt time.Time // it was ended for the first time
	graceEnd time.Time // what is left behind is ended
}

// Run runs a command to the end of its tree.
func (w *Worker) Run(c *Command) (result Result) {
	result.ExitCode = -1
	r := &run{w: w, c: c, r: &result, ended: make(chan struct{}, 2)}
	defer c.Log.Close()
	defer r.close()
	if err := w.open(); err != nil {
		r.begun = time.Now()
		result.StartedAt = r.begun
		r.startFailed(err)
		return result
	}
	w.mu.Lock()
	w.running, w.tree, w.killed = true, nil, kill{}
	w.mu.Unlock()
	if !r.start() {
		w.mu.Lock()
		w.running = false
		w.mu.Unlock()
		return result
	}
	r.watch()
	r.end()
	return result
}

// close gives back what the run holds. It releases who reads and feeds, whoever else
// keeps a pipe open.
func (r *run) close() {
	for _, f := range []*os.File{r.input, r.pipes[0], r.pipes[1]} {
		if f != nil {
			f.Close() // what fed the input may have closed it
		}
	}
	r.loops.Wait()
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if r.w.killed.asked { // it must not wake the next run
		windows.ResetEvent(r.w.wake)
	}
	r.w.tree = nil
	if r.tree != nil && r.tree != r.w.stuck {
		r.tree.close()
	}
}

// watch waits until the main process has ended, enforcing the timeout and carrying out
// kills.
func (r *run) watch() {
	events := []windows.Handle{r.tree.process, r.w.wake}
	for !r.exited {
		event, err := windows.WaitForMultipleObjects(events, false, r.wait())
		if err != nil {
			panic("process: wait: " + err.Error()) // the handles are ours and open
		}
		r.exited = event == windows.WAIT_OBJECT_0
		r.tree.hear()
		r.enforce()
	}
}

// wait is how long to wait, in milliseconds: until the next deadline.
func (r *run) wait() uint32 {
	next, ran := time.Duration(-1), r.ran()
	in := func(d time.Duration) {
		if d = max(0, d); next < 0 || d < next {
			next = d
		}
	}
	if !r.told {
		in(StartedAfter - ran)
	}
	if r.c.Timeout > 0 && r.termAt.IsZero() {
		in(r.c.Timeout - ran)
	}
	if r.c.IdleTimeout > 0 && r.termAt.IsZero() {
		in(r.c.IdleTimeout - r.silent(ran))
	}
	if !r.killAt.IsZero() {
		in(time.Until(r.killAt))
	}
	if r.tree.port != 0 {
		in(time.Second) // what the kernel tells must not pile up
	}
	if next < 0 {
		return windows.INFINITE
	}
	return uint32(min((next+time.Millisecond-1)/time.Millisecond, 1<<30))
}

// ran is how long the command has run, without the time that the machine slept.
func (r *run) ran() time.Duration { return r.w.sys.awake() - r.from }

// silent is for how long it has printed nothing, once it ran so long.
func (r *run) silent(ran time.Duration) time.Duration { return ran - time.Duration(r.heard.Load()) }

// enforce does what is due while the main process runs. Whether a kill or the
// timeout came before the end is decided here alone.
func (r *run) enforce() {
	now, ran := time.Now(), r.ran()
	killed := r.obey(now)
	if r.exited {
		r.r.EndedAt = now
		if killed.asked && !r.r.TimedOut {
			r.r.Cause = killed.cause
		}
		return
	}
	if !r.told && ran >= StartedAfter {
		r.told = true
		r.c.Started(r.r.PID, r.begun)
	}
	if r.c.Timeout > 0 && r.termAt.IsZero() && ran >= r.c.Timeout {
		r.r.TimedOut = true
		r.terminate(now, r.c.KillAfter)
	}
	if r.c.IdleTimeout > 0 && r.termAt.IsZero() && r.silent(ran) >= r.c.IdleTimeout {
		r.r.TimedOut, r.r.Silent = true, true
		r.terminate(now, r.c.KillAfter)
	}
	if !r.killAt.IsZero() && !now.Before(r.killAt) {
		if r.killedAt.IsZero() {
			r.killedAt = now
		}
		r.tree.kill()
		r.killAt = now.Add(min(time.Second, r.c.Patience))
		if now.Sub(r.killedAt) >= r.c.Patience {
			r.giveUpMain()
			r.r.EndedAt, r.r.Cause = now, killed.cause
		}
	}
}

// terminate asks the main process's group to end. What has no console, or does not
// listen, has the same grace; where nobody could be asked there is none.
func (r *run) terminate(now time.Time, grace time.Duration) {
	if r.termAt.IsZero() {
		r.unasked = r.w.sys.interrupt(r.tree.pid) != nil // its handle is open, so the group is ours
		r.termAt = now
	}
	if r.unasked {
		grace = 0
	}
	r.killAt = now.Add(grace)
}

// read takes what a pipe holds until its end.
func (r *run) read(i int) {
	for {
		n, err := r.pipes[i].Read(r.w.buffers[i])
		if n > 0 {
			r.heard.Store(int64(r.ran()))
			r.c.Log.Append(output.Stream(i), time.Now().UnixMilli(), r.w.buffers[i][:n])
		}
		if errors.Is(err, io.EOF) && connected(r.pipes[i]) {
			continue // nothing was written, which is not the end
		}
		if err != nil {
			r.ended <- struct{}{}
			return
		}
	}
}
