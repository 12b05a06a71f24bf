package process

import (
	"syscall"

	"github.com/queuectl/queuectl/runner/procfs"
)

// SignalProcess sends a signal to the process with this pid and this start time, in clock ticks since boot. A different
// start time means that the kernel has given the pid to another process; SignalProcess then does nothing. If ownerUID
// is not nil, the process must also belong to that account.
func SignalProcess(pid int, startTicks int64, ownerUID *uint32, signal syscall.Signal) error {
	return sendSignal(procfs.Process{PID: pid, StartTicks: startTicks}, signal,
		func() bool { return ownerUID == nil || IsOwnedBy(*ownerUID, pid) })
}

// IsOwnedBy reports whether a process belongs to an account, that is, whether the account's uid is the real
// user id of the process.
func IsOwnedBy(uid uint32, pid int) bool {
	real, _, ok := procfs.UIDs(pid)
	return ok && real == uid
}

// IsStopped reports whether a process is stopped, by a signal or a debugger.
func IsStopped(pid int) bool {
	p, ok := procfs.Stat(pid)
	return ok && (p.State == 'T' || p.State == 't')
}
