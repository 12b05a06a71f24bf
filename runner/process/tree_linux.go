package process

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/cleanstart"
	"github.com/queuectl/queuectl/internal/tune"
	"github.com/queuectl/queuectl/runner/procfs"
)

// Lock the main goroutine to the main thread, so that other goroutines, which fork commands, run on other
// threads. The kernel's list of the main thread's children then normally contains only orphans. An init
// function always runs on the main thread.
func init() {
	if os.Getenv(preparedEnvVar) != "" {
		runtime.LockOSThread()
	}
}

// PrepareToRunCommands prepares this process for running commands. Afterwards, this process has its own session and
// umask 022, and adopts orphans. Commands inherit only its descriptors 0, 1 and 2, and no ignored or blocked signals.
//
// PrepareToRunCommands sets the limit of open files to 1,024, which commands need, and then executes this program
// again, once. The second execution is needed because the Go runtime gives commands the limit that it finds when it
// starts.
func PrepareToRunCommands() error {
	if os.Getenv(preparedEnvVar) == "" {
		return restartWithCommandLimits()
	}
	os.Unsetenv(preparedEnvVar)
	if name, err := unix.BytePtrFromString(filepath.Base(os.Args[0])); err == nil {
		// Without a name, ps would show "exe".
		unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0)
	}
	unix.Setsid() // fails only if this process already leads its own session
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("the runner cannot start, because the kernel or a sandbox refuses prctl(PR_SET_CHILD_SUBREAPER); "+
			"allow the system call prctl in the sandbox: %w", err)
	}
	unix.Umask(inheritedUmask)
	takeOverGarbageCollection()
	if err := resetSIGCHLD(); err != nil {
		return err
	}
	return cleanstart.SetCloseOnExec()
}

// preparedEnvVar is the environment variable that shows that restartWithCommandLimits has restarted this program.
const preparedEnvVar = "QUEUECTL_PREPARED"

// softOpenFileLimit is the soft limit of open files of a command that does not set MaxOpenFiles.
const softOpenFileLimit = 1024

// restartWithCommandLimits executes this program again, with the limit of open files and the signal actions that
// commands need. It returns only if it fails.
func restartWithCommandLimits() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("cannot read the open file limit: %w", err)
	}
	limit.Cur = min(softOpenFileLimit, limit.Max)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("cannot set the open file limit: %w", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cleanstart.ResetSignals()
	return tune.ExecWithTimerSlack(append(os.Environ(), preparedEnvVar+"=1"))
}

// resetSIGCHLD resets SIGCHLD to its default action: the kernel discards the signal, and an ended child stays a zombie
// until it is reaped. Workers do not need SIGCHLD, because a child's pidfd shows when the child has ended. The signal
// handler of the Go runtime would only interrupt the workers. See docs/decisions/0039.
func resetSIGCHLD() error {
	var action [8]uintptr // larger than the kernel's struct sigaction
	if _, _, failed := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), uintptr(unsafe.Pointer(&action)), 0,
		8, 0, 0); failed != 0 {
		return fmt.Errorf("cannot set SIGCHLD to its default: %w", failed)
	}
	return nil
}

// listTreeProcesses lists the living processes of a command's tree, except the main process. These are the processes in
// the session or group of the main process, the processes with the command's cookie (a text in their environment), and
// all descendants of these processes. A process of another account may have a forged cookie, so its cookie does not
// count.
func listTreeProcesses(mainPID int, cookie string, uid uint32) []procfs.Process {
	return listTreeInScan(processScanner.freshSnapshot(), mainPID, cookie, uid)
}

// listTreeInScan lists the same processes as listTreeProcesses, but searches scanned, the result of an earlier scan of
// all processes.
func listTreeInScan(scanned *processSnapshot, mainPID int, cookie string, uid uint32) []procfs.Process {
	return withDescendants(scanned.procs, func(p procfs.Process) bool {
		return p.SID == mainPID || p.PGID == mainPID || p.PPID == mainPID || scanned.isOwnedBy(uid, p.PID) &&
			scanned.cookie(p.PID) == cookie
	}, mainPID)
}

// withDescendants returns the living processes for which isMember returns true, and all their descendants. It
// omits this process and the process exceptPID.
func withDescendants(procs []procfs.Process, isMember func(procfs.Process) bool, exceptPID int) []procfs.Process {
	self := os.Getpid()
	memberPIDs := map[int]bool{}
	for _, p := range procs {
		if p.PID != exceptPID && p.PID != self && p.WasAlive() && isMember(p) {
			memberPIDs[p.PID] = true
		}
	}
	for changed := true; changed; {
		changed = false
		for _, p := range procs {
			if !memberPIDs[p.PID] && memberPIDs[p.PPID] && p.PID != exceptPID && p.PID != self && p.WasAlive() {
				memberPIDs[p.PID], changed = true, true
			}
		}
	}
	var members []procfs.Process
	for _, p := range procs {
		if memberPIDs[p.PID] {
			members = append(members, p)
		}
	}
	return members
}

// killProcesses sends SIGKILL to the given processes. It ignores errors.
func killProcesses(procs []procfs.Process) {
	for _, p := range procs {
		sendSignal(p, unix.SIGKILL, nil)
	}
}

// sendSignal sends a signal to a process that was found earlier. It does nothing if the process has ended,
// even if another process now has its pid. It also does nothing if isAllowed is not nil and returns false.
func sendSignal(p procfs.Process, signal unix.Signal, isAllowed func() bool) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err == nil {
		defer unix.Close(fd)
		if now, ok := procfs.Stat(p.PID); !ok || now.StartTicks != p.StartTicks || isAllowed != nil && !isAllowed() {
			return nil
		}
		err = unix.PidfdSendSignal(fd, signal, nil, 0)
	}
	if err == unix.ESRCH {
		return nil
	}
	return err
}

// EndProcessTrees sends SIGKILL to every process of a dead runner: the processes in the runner's session, those with
// one of the cookies (a text in their environment), and those of the trees of its attempts. A process is the main
// process of a tree if it has the tree's pid and start time. A session or process group whose id is this pid belongs to
// the tree if it contains the main process or a process with the tree's cookie. survivors lists the processes that
// EndProcessTrees found at first. stuck lists those that are still alive after the timeout. EndProcessTrees never ends
// this process.
func EndProcessTrees(deadRunner DeadRunner, timeout time.Duration) (survivors, stuck []SurvivingProcess) {
	ours := map[string]bool{} // cookies of deadRunner, and the endings ".SEQ.FENCE" of the cookies of its AttemptTrees
	for _, c := range deadRunner.Cookies {
		ours[c] = true
	}
	mains := map[int]AttemptTree{}
	for _, t := range deadRunner.AttemptTrees {
		if t.Fence != 0 {
			ours[fmt.Sprintf(".%d.%d", t.JobSeq, t.Fence)] = true
		}
		if t.MainPID != 0 {
			mains[t.MainPID] = t
		}
	}
	isOurs := func(cookie string) bool { return ours[cookie] || ours[seqAndFenceSuffix(cookie)] }
	start := time.Now()
	for pause, first := time.Millisecond, true; ; pause, first = min(2*pause, 50*time.Millisecond), false {
		session := deadRunner.PID
		if p, ok := procfs.Stat(deadRunner.PID); session == 0 || ok && p.StartTicks != deadRunner.StartTicks {
			session = -1 // another process has the runner's pid now, so the runner's session is empty
		}
		ownedIDs := map[int]bool{} // contains the ids of sessions and groups that belong to the trees
		for _, p := range procfs.AllProcesses() {
			if t, ok := mains[p.PID]; ok && t.isMainProcess(p) {
				ownedIDs[p.PID] = true
			}
			for _, id := range []int{p.SID, p.PGID} {
				if _, ok := mains[id]; ok && !ownedIDs[id] && isOurs(readCookie(p.PID)) {
					ownedIDs[id] = true
				}
			}
		}
		remaining := withDescendants(procfs.AllProcesses(), func(p procfs.Process) bool {
			if deadRunner.IsBackgroundGroup != nil && deadRunner.IsBackgroundGroup(p.PGID) {
				return false
			}
			return p.SID == session || ownedIDs[p.SID] || ownedIDs[p.PGID] || isOurs(readCookie(p.PID))
		}, 0)
		if deadRunner.OwnerUID != nil {
			remaining = slices.DeleteFunc(remaining, func(p procfs.Process) bool {
				return !IsOwnedBy(*deadRunner.OwnerUID, p.PID)
			})
		}
		if first {
			survivors = toSurvivingProcesses(remaining)
		}
		if len(remaining) == 0 {
			return survivors, nil
		}
		if time.Since(start) > timeout {
			return survivors, toSurvivingProcesses(remaining)
		}
		killProcesses(remaining)
		time.Sleep(pause)
	}
}

// toSurvivingProcesses converts processes to the type that EndProcessTrees returns.
func toSurvivingProcesses(procs []procfs.Process) (survivors []SurvivingProcess) {
	for _, p := range procs {
		survivors = append(survivors, SurvivingProcess{p.PID, p.PGID, readCookie(p.PID)})
	}
	return survivors
}

// seqAndFenceSuffix returns the last two parts of a cookie, ".SEQ.FENCE", which identify an attempt. Each part begins
// with a dot.
func seqAndFenceSuffix(cookie string) string {
	i := strings.LastIndexByte(cookie, '.')
	if i < 0 {
		return ""
	}
	i = strings.LastIndexByte(cookie[:i], '.')
	return cookie[max(i, 0):]
}

// maxStartBeforeFork and maxStartAfterFork bound the difference between the start time of a process that the kernel
// reports and the start time that OnForked received. The two can differ because the kernel's time is in whole clock
// ticks, and the time for OnForked was taken right before the process was created. A larger difference means that
// another process now has the pid.
const (
	maxStartBeforeFork = 15 * time.Millisecond
	maxStartAfterFork  = 30 * time.Millisecond
)

// isMainProcess reports whether p is the main process of the tree, and not a later process with the same pid. It
// compares the start times of p and of the main process.
func (t AttemptTree) isMainProcess(p procfs.Process) bool {
	var uptime unix.Timespec
	if t.StartedAt.IsZero() || unix.ClockGettime(unix.CLOCK_BOOTTIME, &uptime) != nil {
		return false
	}
	age := time.Duration(uptime.Nano()) - time.Duration(p.StartTicks)*(time.Second/clockTicksPerSecond)
	difference := time.Since(t.StartedAt) - age
	return -maxStartBeforeFork <= difference && difference <= maxStartAfterFork
}

// clockTicksPerSecond is the unit of times in /proc (USER_HZ). It is the same on every architecture that Go
// supports.
const clockTicksPerSecond = 100

// ThisProcessStartTicks returns when this process started, in clock ticks since boot.
func ThisProcessStartTicks() int64 {
	p, _ := procfs.Stat(os.Getpid())
	return p.StartTicks
}

// BootID returns the identifier of the current boot of this machine.
func BootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw)), err
}
