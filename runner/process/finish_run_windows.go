package process

import (
	"fmt"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/queue"
)

// pipeDrainTimeout limits how long the output pipes are read after the tree has ended. A pipe that is still open
// after this time is held open by a program outside the tree.
const pipeDrainTimeout = time.Second

// finishRun completes the run after the main process has ended. It reads the rest of the output and ends leftover
// processes, that is, processes that the main process left behind.
func (r *runningCommand) finishRun() {
	if r.result.StuckPID != 0 {
		return
	}
	forced := !r.sigtermSentAt.IsZero()
	r.leftoverGraceEndsAt = r.result.EndedAt.Add(r.command.LeftoverGracePeriod)
	if !forced {
		r.resumeTree() // a pause may have frozen the tree, and no kill has resumed it
		r.drainPipes(r.leftoverGraceEndsAt)
	}
	if !r.command.AllowBackground || forced {
		r.waitForTreeEnd()
		r.endLeftoverProcesses(forced)
	} else if count, _ := r.tree.countOtherProcesses(); count > 0 {
		r.keepTreeInBackground()
	} else {
		r.drainPipes(time.Now().Add(pipeDrainTimeout))
	}
	var code uint32
	err := windows.GetExitCodeProcess(r.tree.mainHandle, &code)
	switch {
	case err != nil:
		r.result.ExitStatusUnknown, r.result.Error = true, fmt.Sprintf("the job's exit code is unknown: %v", err)
	case windows.NTStatus(code) == windows.STATUS_DLL_INIT_FAILED && !forced && !r.hasPrintedOutput.Load():
		r.result.ResourceShortage, r.result.Error = true, desktopHeapFullMessage
	default:
		r.result.ExitCode = int64(code)
	}
	r.tree.readJobMessages()
	r.result.OutOfMemory = r.tree.memoryWasRefused && code != 0 && !forced
	r.result.ReachedMemoryLimit = r.result.OutOfMemory // a job object refuses memory only at the command's own limit
	r.result.LoginSessionWasEnding = code != 0 && !forced && r.worker.systemCalls.isSessionEnding()
	r.result.CPUTime, r.result.PeakRSSBytes = r.tree.resourceUsage()
}

// desktopHeapFullMessage describes the most likely reason why a program ends with the status 0xC0000142 before it
// prints anything. Nearly all programs load user32.dll, which needs a part of the desktop heap. All programs of a
// session share one desktop heap (learn.microsoft.com, "Desktop heap limitation causes out of memory error").
const desktopHeapFullMessage = "the program could not start: it ended with 0xC0000142 and printed nothing, because " +
	"the desktop heap that all jobs share is full; run fewer jobs at the same time, or raise SharedSection in the registry"

// drainPipes waits until both pipes are at end of file or the deadline has passed.
func (r *runningCommand) drainPipes(deadline time.Time) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for r.openPipeCount > 0 {
		select {
		case <-r.pipeEOFSignals:
			r.openPipeCount--
		case <-timer.C:
			return
		}
	}
}

// keepTreeInBackground lets leftover processes live on after the run.
func (r *runningCommand) keepTreeInBackground() {
	if err := r.tree.keepRunningAfterClose(); err != nil {
		r.result.Error = fmt.Sprintf(
			"allow_background: Windows could not let the job's background processes continue, so they "+
				"were ended; this did not change the exit code: %v", err)
		return
	}
	r.result.HasBackgroundProcesses = true
}

// waitForTreeEnd waits until the remaining processes of the tree have ended, or until they must be ended. After it has
// returned, a call of Kill has no effect on these processes.
func (r *runningCommand) waitForTreeEnd() {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		count, _ := r.tree.countOtherProcesses()
		wait := time.Until(r.leftoverSigkillTime())
		if count == 0 || wait <= 0 {
			break
		}
		wait = min(pause, wait)
		if _, err := windows.WaitForSingleObject(r.worker.wakeEventHandle, uint32(ceilMilliseconds(wait))); err != nil {
			panic("process: wait: " + err.Error()) // the handle is valid: only this goroutine closes it
		}
		r.tree.readJobMessages()
		r.executeKillAndPauseRequests(time.Now())
	}
	r.worker.markCommandEnded()
}

// endLeftoverProcesses ends leftover processes. If the tree has already received CTRL_BREAK, leftover processes get no
// second grace period.
func (r *runningCommand) endLeftoverProcesses(afterTreeKill bool) {
	start := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		count, first := r.tree.countOtherProcesses()
		if count == 0 {
			break
		}
		if time.Since(start) > r.command.SigkillTimeout {
			r.recordStuckProcesses(count, first)
			break
		}
		r.result.EndedLeftoverCount = max(r.result.EndedLeftoverCount, count)
		r.tree.kill()
		time.Sleep(pause)
	}
	if afterTreeKill {
		r.result.EndedAt = time.Now() // after a kill, the command ends when the last process of its tree has ended
	}
	if r.result.StuckPID == 0 {
		r.drainPipes(time.Now().Add(pipeDrainTimeout))
	}
}

// recordStuckProcesses records in the result that processes are still alive after their job object was ended.
// They wait in the kernel, for example for a disk or a server that does not respond. firstPID is the pid of
// one of them.
func (r *runningCommand) recordStuckProcesses(stuckCount int, firstPID uint32) {
	r.result.StuckPID = int(firstPID)
	r.result.Error = fmt.Sprintf(
		"%d processes of the job still exist %v after the runner tried to end them; they may wait "+
			"for a device or a server that does not answer; the first has pid %d",
		stuckCount, r.command.SigkillTimeout, firstPID)
	r.worker.stuckTree = r.tree
}

// killTree ends the whole tree, including the main process.
func (r *runningCommand) killTree() *processTree {
	r.tree.kill()
	return r.tree
}

// recordStuckMainProcess records in the result that the main process cannot be ended.
func (r *runningCommand) recordStuckMainProcess(t *processTree) {
	count, _ := t.countOtherProcesses()
	r.recordStuckProcesses(1+count, t.mainPID)
}

// isStuck reports whether processes of the worker's last command are still alive because they could not be
// ended.
func (w *Worker) isStuck() bool {
	if w.stuckTree != nil && !w.stuckTree.hasEnded() {
		return true
	}
	w.closeStuckTree()
	return false
}

func (w *Worker) closeStuckTree() {
	if w.stuckTree != nil {
		w.stuckTree.close()
		w.stuckTree = nil
	}
}

// utf8CodePage is the code page of UTF-8.
const utf8CodePage = 65001

// PrepareToRunCommands prepares this process for running commands. From then on, Windows shows no dialog when a command
// crashes or needs a disk. Commands do not inherit this process's standard handles, and a command's output to the
// console is UTF-8. Console events that are meant for commands do not end this process. CTRL_BREAK reaches only
// commands that share a console with this process, so this process must have been started with a console.
func PrepareToRunCommands() error {
	const errorMode = windows.SEM_FAILCRITICALERRORS | windows.SEM_NOGPFAULTERRORBOX
	windows.SetErrorMode(errorMode | windows.SetErrorMode(errorMode)) // SetErrorMode returns the previous mode
	for _, h := range []windows.Handle{windows.Stdin, windows.Stdout, windows.Stderr} {
		windows.SetHandleInformation(h, windows.HANDLE_FLAG_INHERIT, 0) // fails if this handle does not exist
	}
	windows.SetConsoleOutputCP(utf8CodePage) // fails if this process has no console
	windows.SetConsoleCP(utf8CodePage)
	if ok, _, err := procSetConsoleCtrlHandler.Call(ignoreConsoleEvent, 1); ok == 0 {
		return fmt.Errorf("the runner cannot start, because Windows does not let it ignore Ctrl+C and Ctrl+Break: %w", err)
	}
	return nil
}

// ignoreConsoleEvent receives console events before Go's runtime does. Events that are not for this process do not
// reach the runtime.
var ignoreConsoleEvent = windows.NewCallback(func(event uint32) uintptr {
	var session uint32
	if windows.ProcessIdToSessionId(windows.GetCurrentProcessId(), &session) == nil &&
		!isConsoleEventForRunner(event, session) {
		return 1
	}
	return 0
})

// isConsoleEventForRunner reports whether a console event is for this process, not for its commands. CTRL_C and
// CTRL_BREAK are for the commands. The log-off of a user is for this process, unless this process is a
// service (session 0): a service gets this event whenever any user logs off.
func isConsoleEventForRunner(event, sessionID uint32) bool {
	return sessionID != 0 && event != windows.CTRL_C_EVENT && event != windows.CTRL_BREAK_EVENT
}

// LimitEnforcements returns how each limit of a command is enforced.
func LimitEnforcements(*Cgroups) []queue.LimitEnforcement {
	const mechanism = "a Windows job object"
	return []queue.LimitEnforcement{
		{LimitField: "memory", Extent: queue.Enforced, Mechanism: mechanism},
		{LimitField: "cpus", Extent: queue.Enforced, Mechanism: mechanism},
		{LimitField: "tasks", Extent: queue.Enforced, Mechanism: mechanism + ", which counts processes, not threads"},
		{LimitField: "nice", Extent: queue.Enforced, Mechanism: mechanism + ", with its priority class"},
		{LimitField: "nofile", Extent: queue.Unenforced, Mechanism: "Windows cannot limit open files"},
		{LimitField: "no_new_privileges", Extent: queue.Unenforced, Mechanism: "Windows has no equivalent"},
	}
}

// EndProcessTrees ends process trees of a dead runner's commands. Windows normally ends these trees together with the
// runner. A tree survives only if another process has opened its job object. EndProcessTrees opens a tree by its
// cookie, which is part of the name of its job object. survivors contains one process of each tree that exists. stuck
// contains one process of each tree that is still alive after the timeout.
func EndProcessTrees(deadRunner DeadRunner, timeout time.Duration) (survivors, stuck []SurvivingProcess) {
	deadline := time.Now().Add(timeout)
	for _, cookie := range deadRunner.Cookies {
		t, err := openTreeByCookie(cookie)
		if err != nil {
			continue // no job object with this name exists, so the tree has ended
		}
		for pause, counted := time.Millisecond, false; ; pause, counted = min(2*pause, 50*time.Millisecond), true {
			count, first := t.countOtherProcesses()
			if count == 0 {
				break
			}
			if !counted {
				survivors = append(survivors, SurvivingProcess{int(first), int(first), cookie})
			}
			if time.Now().After(deadline) {
				stuck = append(stuck, SurvivingProcess{int(first), int(first), cookie})
				break
			}
			t.kill()
			time.Sleep(pause)
		}
		t.close()
	}
	return survivors, stuck
}

// openTreeByCookie opens the tree with a cookie. It succeeds only if another process has the job object of the tree
// open. Otherwise Windows has ended the tree.
func openTreeByCookie(cookie string) (*processTree, error) {
	name, err := jobObjectName(cookie)
	if err != nil {
		return nil, err
	}
	h, _, err := procOpenJobObject.Call(jobObjectTerminate|jobObjectQuery, 0, uintptr(unsafe.Pointer(name)))
	if h == 0 {
		return nil, err
	}
	return &processTree{systemCalls: &realSystemCalls, jobHandle: windows.Handle(h)}, nil
}

// ThisProcessStartTicks returns when this process started, in units of 100 ns since 1601 (FILETIME).
func ThisProcessStartTicks() int64 {
	var created, exited, kernel, user windows.Filetime
	windows.GetProcessTimes(windows.CurrentProcess(), &created, &exited, &kernel, &user)
	return filetimeTicks(created)
}

// BootID returns an identifier of the current boot of this machine: the boot time, without the effect of
// later changes of the clock.
func BootID() (string, error) {
	var timeOfDay struct {
		boot, now, zone  int64
		zoneID, reserved uint32
		bootBias, asleep int64
	}
	if err := windows.NtQuerySystemInformation(systemTimeOfDayClass, unsafe.Pointer(&timeOfDay),
		uint32(unsafe.Sizeof(timeOfDay)), nil); err != nil {
		return "", fmt.Errorf("cannot read the boot time of this machine: %w", err)
	}
	return strconv.FormatInt(timeOfDay.boot-timeOfDay.bootBias, 10), nil
}
