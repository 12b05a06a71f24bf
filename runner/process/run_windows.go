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
	pause   pause // asked for by Pause

	stuck *tree // what Run has given up; of its goroutine
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
			return fmt.Errorf("create an event: %w", err)
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
func (w *Worker) Type(int, []byte) (t Typed, ok bool) { return t, false }

// Resize gives the running command's terminal another size: here there are none.
func (w *Worker) Resize(int, int, int) {}

// begins reports whether the command's program has not begun yet: its limits are those of a job
// object, in force from the start.
func (*run) begins() bool { return false }

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
	printed  atomic.Bool   // something
	heard    atomic.Int64  // when it last printed, since then, its pauses left out but for the last one
	told     bool
	still    standstill
	exited   bool
	termAt   time.Time // CTRL_BREAK was sent
	unasked  bool      // or could not be
	killAt   time.Time // the end of the job object is due
	killedAt time.Time // it was ended for the first time
	graceEnd time.Time // what is left behind is ended
	noteAt   time.Time // a look at the notes is due
	noting   bool      // and has to be told of, whatever it finds

	suspended map[uint32]windows.Handle // by pid, what a pause has suspended
}

// interrupt has the wait return.
func (w *Worker) interrupt() { windows.SetEvent(w.wake) }

// newRun prepares a run.
func (w *Worker) newRun(c *Command, result *Result) *run {
	return &run{w: w, c: c, r: result, ended: make(chan struct{}, 2)}
}

// occupy makes the worker one that runs a command.
func (w *Worker) occupy(*Command) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running, w.tree, w.killed, w.pause = true, nil, kill{}, pause{}
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
	if r.w.killed.asked || r.w.pause.asked { // it must not wake the next run
		windows.ResetEvent(r.w.wake)
	}
	r.w.unpause()
	for _, h := range r.suspended {
		windows.CloseHandle(h)
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
	next := r.untilDue()
	if r.tree.port != 0 && (next < 0 || next > time.Second) {
		next = time.Second // what the kernel tells must not pile up
	}
	if next < 0 {
		return windows.INFINITE
	}
	return uint32(milliseconds(next))
}

// silent is for how long it has printed nothing.
func (r *run) silent() time.Duration { return r.elapsed() - time.Duration(r.heard.Load()) }

// terminate asks the main process's group to end. What has no console, or does not
// listen, has the same grace; where nobody could be asked there is none.
func (r *run) terminate(now time.Time, grace time.Duration) {
	if r.termAt.IsZero() {
		if grace > 0 {
			r.goOn()
			now = time.Now()
		}
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
			r.printed.Store(true)
			r.heard.Store(int64(r.elapsed()))
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
