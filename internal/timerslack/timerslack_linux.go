// Package timerslack keeps the Go runtime's watch thread from costing more than
// the work: it naps 20 µs at a time in a program that goes to and fro between
// system calls, which was a sixth of what a drained job cost here. The kernel may
// lengthen every nap of a thread by its timer slack, so a larger one makes the
// naps fewer, and every other timer of the program that much later at most.
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
	slack    = 4_000_000 // ns, of a program's threads: a tick of most kernels
	usual    = 50_000    // ns, Linux's default
	variable = "QUEUECTL_TIMERSLACK"
)

// original is the slack that this program was started with, in nanoseconds.
// See docs/decisions/0038.
var original = sync.OnceValue(func() uintptr {
	if ns, err := strconv.ParseUint(os.Getenv(variable), 10, 62); err == nil && ns > 0 {
		return uintptr(ns)
	}
	return usual
})

// Restart starts this program again in its place, with the slack: threads have
// that of the thread that made them, and the watch thread is made before any
// code of ours runs. It calls before on the thread that does so. In the program that was started
// again it only returns.
func Restart(before func()) error {
	if os.Getenv(variable) != "" {
		os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0) // else ps would show "exe"
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before()
	return Exec(os.Environ())
}

// Exec starts this program again in its place, with the slack and an environment.
// It returns only if that failed.
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
	unix.Prctl(unix.PR_SET_TIMERSLACK, slack, 0, 0, 0) // without it all is dearer, no more
	err := syscall.Exec("/proc/self/exe", os.Args, env)
	return fmt.Errorf("start this program again: %w", err)
}

// Restore gives the calling thread the slack that the program was started with:
// processes have that of the thread that starts them. The caller has locked the
// thread. The Go runtime is not told of a call that waits for nothing.
func Restore() { unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, original(), 0, 0, 0, 0) }
