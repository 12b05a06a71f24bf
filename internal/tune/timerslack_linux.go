package tune

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// The Go runtime has a monitor thread (sysmon). If a program makes system calls all the time, the monitor thread wakes
// every 20 µs. This was a sixth of the cost of a short job. The kernel may lengthen every sleep of a thread by the
// thread's timer slack, so with a larger slack, the monitor thread wakes less often. The slack also delays all other
// timers of the program, by at most the slack.

const (
	timerSlackNanos        = 4_000_000 // ns; slack of this program's threads: one tick of most kernels
	defaultTimerSlackNanos = 50_000    // ns; the default on Linux
	timerSlackEnvVariable  = "QUEUECTL_TIMERSLACK"
)

// originalTimerSlack returns the timer slack, in nanoseconds, that this process had before RestartWithTimerSlack
// changed it. See docs/decisions/0038.
var originalTimerSlack = sync.OnceValue(func() uintptr {
	if ns, err := strconv.ParseUint(os.Getenv(timerSlackEnvVariable), 10, 62); err == nil && ns > 0 {
		return uintptr(ns)
	}
	return defaultTimerSlackNanos
})

// RestartWithTimerSlack executes this program again with a larger timer slack. It does nothing in the
// restarted program. The restart is necessary, because the Go runtime creates its monitor thread before main
// runs, and a thread inherits the slack of the thread that creates it. Just before the exec,
// RestartWithTimerSlack calls beforeExec on the same thread.
func RestartWithTimerSlack(beforeExec func()) error {
	if os.Getenv(timerSlackEnvVariable) != "" {
		// Set the name that ps shows. The kernel took it from the executed path, so it is "exe".
		os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0)
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	beforeExec()
	return ExecWithTimerSlack(os.Environ())
}

// ExecWithTimerSlack executes this program again with the larger slack and the environment env. It returns only
// if that fails. The caller must have locked the goroutine to its thread.
func ExecWithTimerSlack(env []string) error {
	if os.Getenv(timerSlackEnvVariable) == "" {
		was, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		if err != nil || was <= 0 {
			was = defaultTimerSlackNanos
		}
		env = append(env, timerSlackEnvVariable+"="+strconv.Itoa(was))
	}
	// Ignore an error: the program then runs with its present slack and is only slower.
	unix.Prctl(unix.PR_SET_TIMERSLACK, timerSlackNanos, 0, 0, 0)
	err := syscall.Exec("/proc/self/exe", os.Args, env)
	return fmt.Errorf("cannot execute /proc/self/exe to start this program again with other timer settings (%w); check "+
		"that /proc is mounted", err)
}

// RestoreTimerSlack gives the calling thread its original slack. A process that this thread starts inherits the slack.
// The caller must have locked the goroutine to its thread. RestoreTimerSlack may use RawSyscall6, because this system
// call never blocks.
func RestoreTimerSlack() {
	unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, originalTimerSlack(), 0, 0, 0, 0)
}
