package process

import (
	"fmt"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// lastWords is how long the pipes of a tree that was ended are read. Only what another
// program holds is open any longer.
const lastWords = time.Second

// end brings the tree to its end once the main process has ended: it reads what the
// pipes hold, and ends what is left behind.
func (r *run) end() {
	if r.r.StuckPID != 0 {
		return
	}
	forced := !r.termAt.IsZero()
	r.graceEnd = r.r.EndedAt.Add(r.c.OutputGrace)
	if !forced {
		r.goOn() // something else has ended the main process of a tree that stood still
		r.drain(r.graceEnd)
	}
	switch {
	case forced:
		r.waitGrace()
		r.endLeftovers(forced)
	case r.c.Background:
		if count, _ := r.tree.left(); count > 0 {
			r.spare()
		} else {
			r.drain(time.Now().Add(lastWords))
		}
	default:
		r.waitTree(r.graceEnd)
		r.endLeftovers(forced)
	}
	var code uint32
	err := windows.GetExitCodeProcess(r.tree.process, &code)
	switch {
	case err != nil:
		r.r.Lost, r.r.Error = true, fmt.Sprintf("the job's exit code is unknown: %v", err)
	case windows.NTStatus(code) == windows.STATUS_DLL_INIT_FAILED && !forced && !r.printed.Load():
		r.r.Shortage, r.r.Error = true, noDesktop
	default:
		r.r.ExitCode = int64(code)
	}
	r.tree.hear()
	r.r.OutOfMemory = r.tree.ranOut && code != 0 && !forced
	r.r.MemoryLimit = r.r.OutOfMemory // the job object counts its own limit alone
	r.r.SessionEnds = code != 0 && !forced && r.w.sys.ending()
	r.r.CPU, r.r.PeakRSS = r.tree.cost()
}

// noDesktop is what a program that ends so before it has said a word most likely met: user32.dll, which nearly all
// programs load, asks for a part of the desktop heap, and all programs of a session have one together
// (learn.microsoft.com, "Desktop heap limitation causes out of memory error").
const noDesktop = "start: the program ended with 0xC0000142 and printed nothing: the desktop heap that all jobs share is full; run fewer jobs at the same time, or raise SharedSection in the registry"

// drain waits until both pipes are at their end, at most until a deadline.
func (r *run) drain(deadline time.Time) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for r.open > 0 {
		select {
		case <-r.ended:
			r.open--
		case <-timer.C:
			return
		}
	}
}

// spare lets what the main process has left behind live on.
func (r *run) spare() {
	if err := r.tree.spare(); err != nil {
		r.r.Error = fmt.Sprintf("the job's background processes were ended: %v", err)
		return
	}
	r.r.Spared = true
}

// waitTree gives what is left of the tree a moment to end by itself.
func (r *run) waitTree(deadline time.Time) {
	for pause := time.Millisecond; time.Now().Before(deadline); pause = min(2*pause, 20*time.Millisecond) {
		if count, _ := r.tree.left(); count == 0 {
			return
		}
		time.Sleep(min(pause, time.Until(deadline)))
	}
}

// waitGrace gives a tree that was asked to end the rest of its grace, at most until it is
// gone. From then on it is too late for a Kill.
func (r *run) waitGrace() {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		count, _ := r.tree.left()
		wait := time.Until(r.due())
		if count == 0 || wait <= 0 {
			break
		}
		wait = min(pause, wait)
		if _, err := windows.WaitForSingleObject(r.w.wake, uint32((wait+time.Millisecond-1)/time.Millisecond)); err != nil {
			panic("process: wait: " + err.Error()) // the handle is ours and open
		}
		r.tree.hear()
		r.obey(time.Now())
	}
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.w.running = false
}

// endLeftovers ends what the main process has left behind. What has been asked to end
// already has had its grace.
func (r *run) endLeftovers(forced bool) {
	began := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		count, first := r.tree.left()
		if count == 0 {
			break
		}
		if time.Since(began) > r.c.Patience {
			r.giveUp(count, first)
			break
		}
		r.r.Leftovers = max(r.r.Leftovers, count)
		r.tree.kill()
		time.Sleep(pause)
	}
	if forced {
		r.r.EndedAt = time.Now() // the end of a tree that is ended is that of all of it
	}
	if r.r.StuckPID == 0 {
		r.drain(time.Now().Add(lastWords))
	}
}

// giveUp notes what outlives the end of its job object: a process that waits in the
// kernel, for a disk or a server that does not answer.
func (r *run) giveUp(count int, first uint32) {
	r.r.StuckPID = int(first)
	r.r.Error = fmt.Sprintf("%d processes of the job still exist %v after they were ended; the first has pid %d", count, r.c.Patience, first)
	r.w.stuck = r.tree
}

// killTree ends the whole tree now.
func (r *run) killTree() *tree {
	r.tree.kill()
	return r.tree
}

// giveUpMain gives up a tree whose main process has not ended.
func (r *run) giveUpMain(t *tree) {
	count, _ := t.left()
	r.giveUp(1+count, t.pid)
	r.exited = true
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.w.running = false
}

// Linger waits until what the last Run has given up is gone, or stop is closed. It
// is for the goroutine that called Run.
func (w *Worker) Linger(stop <-chan struct{}) {
	for pause := 10 * time.Millisecond; w.stuck != nil && !w.stuck.gone(); pause = min(2*pause, time.Second) {
		select {
		case <-time.After(pause):
		case <-stop:
			return
		}
	}
	w.dropStuck()
}

func (w *Worker) dropStuck() {
	if w.stuck != nil {
		w.stuck.close()
		w.stuck = nil
	}
}

// Cgroups is a control group that this process may divide; here there are none.
type Cgroups struct{}

// Divide moves this process into a group below its own.
func Divide() (*Cgroups, error) { return nil, ErrUnsupported }

// Sweep removes groups that were given up.
func (c *Cgroups) Sweep() {}

// BoundSelf bounds the memory of this process.
func (c *Cgroups) BoundSelf(int64) error { return ErrUnsupported }

// Expendable has the kernel end commands before this process.
func Expendable() error { return ErrUnsupported }

// Stopped reports whether a process is stopped, which is not known here.
func Stopped(int) bool { return false }

// utf8 is the code page of UTF-8.
const utf8 = 65001

// Prepare makes this process fit to run commands: no dialog waits for somebody where
// one of them crashes or asks for a disk, and none has this process's own handles. To
// be heard by commands, CTRL_BREAK needs a console that this process shares with them,
// with which it must have been started; what that tells of commands does not end this
// process, and what commands write by it is UTF-8.
func Prepare() error {
	const quiet = windows.SEM_FAILCRITICALERRORS | windows.SEM_NOGPFAULTERRORBOX
	windows.SetErrorMode(quiet | windows.SetErrorMode(quiet)) // it says what was set before
	for _, h := range []windows.Handle{windows.Stdin, windows.Stdout, windows.Stderr} {
		windows.SetHandleInformation(h, windows.HANDLE_FLAG_INHERIT, 0) // there may be none
	}
	windows.SetConsoleOutputCP(utf8) // there may be no console
	windows.SetConsoleCP(utf8)
	if ok, _, err := setConsoleCtrlHandler.Call(unmoved, 1); ok == 0 {
		return fmt.Errorf("ignore console events: %w", err)
	}
	return nil
}

// unmoved takes what a console tells its processes and is not for this one; Go's runtime
// hears the rest.
var unmoved = windows.NewCallback(func(event uint32) uintptr {
	var session uint32
	if windows.ProcessIdToSessionId(windows.GetCurrentProcessId(), &session) == nil && !concerns(event, session) {
		return 1
	}
	return 0
})

// concerns reports whether a console's event is for a process that runs commands: not that
// one of them was to end. That the user logs off is, unless it is a service's, which hears
// it of everybody.
func concerns(event, session uint32) bool {
	return session != 0 && event != windows.CTRL_C_EVENT && event != windows.CTRL_BREAK_EVENT
}

// Enforced lists how each limit of a command is enforced.
func Enforced(*Cgroups) []Enforcement {
	const by = "the job object"
	return []Enforcement{
		{"memory", Whole, by}, {"cpus", Whole, by}, {"tasks", Whole, by + " (processes, not threads)"}, {"nice", Whole, by + " (its priority class)"},
		{"nofile", Unenforced, "Windows cannot limit open files"}, {"no_new_privileges", Unenforced, "Windows has no equivalent of this option"},
	}
}

// CheckLimits refuses limits of this process under which it would end; on Windows none is
// inherited.
func CheckLimits() error { return nil }

// Reap reaps orphans that have ended; on Windows the kernel does.
func Reap() (more bool) { return false }

// EndTrees ends what a dead runner's commands have left alive, by their cookies, and
// lists what it met, and what outlives that. The kernel has done so when the runner ended, unless
// somebody else holds one of its job objects, which the cookie alone names.
func EndTrees(d Dead, patience time.Duration) (met, stuck []Left) {
	deadline := time.Now().Add(patience)
	for _, cookie := range d.Cookies {
		t, err := openTree(cookie)
		if err != nil {
			continue // it is not there, so nothing of it is
		}
		for pause, again := time.Millisecond, false; ; pause, again = min(2*pause, 50*time.Millisecond), true {
			count, first := t.left()
			if count == 0 {
				break
			}
			if !again {
				met = append(met, Left{int(first), int(first), cookie})
			}
			if time.Now().After(deadline) {
				stuck = append(stuck, Left{int(first), int(first), cookie})
				break
			}
			t.kill()
			time.Sleep(pause)
		}
		t.close()
	}
	return met, stuck
}

// openTree opens the tree of a cookie, if anybody holds it.
func openTree(cookie string) (*tree, error) {
	name, err := jobName(cookie)
	if err != nil {
		return nil, err
	}
	h, _, err := openJobObject.Call(jobObjectTerminate|jobObjectQuery, 0, uintptr(unsafe.Pointer(name)))
	if h == 0 {
		return nil, err
	}
	return &tree{sys: &kernel, job: windows.Handle(h)}, nil
}

// SelfTicks is when this process started, in units of 100 ns.
func SelfTicks() int64 {
	var created, exited, kernel, user windows.Filetime
	windows.GetProcessTimes(windows.CurrentProcess(), &created, &exited, &kernel, &user)
	return ticks(created)
}

// BootID names this boot of the machine: when it was, whatever the clock was set to
// since.
func BootID() (string, error) {
	var day struct {
		boot, now, zone  int64
		zoneID, reserved uint32
		bootBias, asleep int64
	}
	if err := windows.NtQuerySystemInformation(systemTimeOfDay, unsafe.Pointer(&day), uint32(unsafe.Sizeof(day)), nil); err != nil {
		return "", fmt.Errorf("read the boot time: %w", err)
	}
	return strconv.FormatInt(day.boot-day.bootBias, 10), nil
}
