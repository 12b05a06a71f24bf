// Package timerslack reduces the cost of the Go runtime's monitor thread (sysmon).
//
// In a program that alternates between system calls, the monitor thread sleeps for only 20 µs at a
// time, which was a sixth of the cost of a drained job. The kernel may lengthen every sleep of a
// thread by its timer slack. A larger slack makes these sleeps longer and fewer. It delays every
// other timer of the program by at most that much.
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
	slack    = 4_000_000 // ns; slack of a program's threads, one tick of most kernels
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

// Restart executes this program again with the slack. A thread inherits the slack of the thread
// that creates it, and the runtime creates the monitor thread before any other code runs. Restart
// calls before on the executing thread. In the program that was executed again, it only returns.
func Restart(before func()) error {
	if os.Getenv(variable) != "" {
		os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0) // otherwise ps shows "exe"
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before()
	return Exec(os.Environ())
}

// Exec executes this program again with the slack and an environment. It returns only on failure.
func Exec(env []string) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if os.Getenv(variable) == "" {
		was, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		if err != nil || was <= 0 {
			was = usual
		}
		env = append(env, variable+"="+strconv.Itoa(was))
	}
	unix.Prctl(unix.PR_SET_TIMERSLACK, slack, 0, 0, 0) // an error only makes the program slower
	err := syscall.Exec("/proc/self/exe", os.Args, env)
	return fmt.Errorf("cannot restart this program: %w", err)
}

// Restore gives the calling thread the slack with which the program was started, because a process
// inherits that of the thread that starts it. The caller must have locked the goroutine to its
// thread. It uses RawSyscall6 because the call never blocks.
func Restore() { unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, original(), 0, 0, 0, 0) }
