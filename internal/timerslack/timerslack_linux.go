// Package timerslack reduces the cost of the Go runtime's monitor thread (sysmon).
//
// If a program makes system calls all the time, the monitor thread sleeps for only 20 µs at a time.
// That was a sixth of the cost of a drained job. The kernel may lengthen every sleep of a thread by
// its timer slack. A larger slack makes these sleeps longer and fewer. It also delays every other
// timer of the program, by at most the slack.
package timerslack

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

const (
	slack    = 4_000_000 // ns; slack of this program's threads; one tick of most kernels
	usual    = 50_000    // ns; the default on Linux
	variable = "QUEUECTL_TIMERSLACK"
)

// original is the slack with which this program was started, in nanoseconds.
// See docs/decisions/0038.
var original = sync.OnceValue(func() uintptr {
	if ns, err := strconv.ParseUint(os.Getenv(variable), 10, 62); err == nil && ns > 0 {
		return uintptr(ns)
	}
	return usual
})

// RestartWithTimerSlack executes this program again with the slack. A thread inherits the slack of the thread
// that creates it, and the runtime creates the monitor thread before any other code runs. On the
// thread that executes the program again, RestartWithTimerSlack first calls the function in the parameter before.
// In the program that it has executed, RestartWithTimerSlack does nothing more.
func RestartWithTimerSlack(before func()) error {
	if os.Getenv(variable) != "" {
		// Without this, ps would show the name "exe".
		os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0)
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before()
	return ExecWithTimerSlack(os.Environ())
}

// ExecWithTimerSlack executes this program again with the slack and an environment. It returns only on failure.
func ExecWithTimerSlack(env []string) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if os.Getenv(variable) == "" {
		was, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		if err != nil || was <= 0 {
			was = usual
		}
		env = append(env, variable+"="+strconv.Itoa(was))
	}
	// An error is ignored, because it only makes the program slower.
	unix.Prctl(unix.PR_SET_TIMERSLACK, slack, 0, 0, 0)
	err := syscall.Exec("/proc/self/exe", os.Args, env)
	return fmt.Errorf("cannot execute /proc/self/exe to start this program again with other timer settings (%w); check "+
		"that /proc is mounted", err)
}

// RestoreTimerSlack gives the calling thread the slack with which the program was started, because a process
// inherits the slack of the thread that starts it. The caller must have locked the goroutine to its
// thread. It uses RawSyscall6 because the call never blocks.
func RestoreTimerSlack() {
	unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, original(), 0, 0, 0, 0)
}
