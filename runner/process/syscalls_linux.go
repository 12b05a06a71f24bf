package process

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// siginfo is the siginfo_t that waitid(2) fills in on 64-bit systems.
type siginfo struct {
	signo, _, code int32
	_              int32
	_, _           int32 // pid and uid
	status         int32 // exit code or signal
	_              [100]byte
}

// childExitState reports whether a child has ended, without reaping the child. signal is the signal that ended the
// child, or 0.
func childExitState(pid int) (signal unix.Signal, ended bool) {
	const cldExited = 1 // CLD_EXITED
	var info siginfo
	const options = unix.WEXITED | unix.WNOHANG | unix.WNOWAIT
	err := unix.Waitid(unix.P_PID, pid, (*unix.Siginfo)(unsafe.Pointer(&info)), options, nil)
	if err == nil && info.code != cldExited {
		signal = unix.Signal(info.status)
	}
	return signal, err == nil && info.signo != 0
}

// tryReapChild reaps a child without waiting. It returns ok=false if the child has not ended.
func tryReapChild(pid int) (status unix.WaitStatus, usage unix.Rusage, ok bool, err error) {
	got, err := unix.Wait4(pid, &status, unix.WNOHANG, &usage)
	return status, usage, got == pid || err != nil, err
}
