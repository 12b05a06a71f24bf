package process

import (
	"syscall"

	"golang.org/x/sys/windows"
)

// SignalProcess ends the process with this pid and this start time, in units of 100 ns since 1601. It does so for every
// signal, because Windows cannot ask a process without a window to end. A different start time means that Windows has
// given the pid to another process; SignalProcess then does nothing.
func SignalProcess(pid int, startTicks int64, _ *uint32, _ syscall.Signal) error {
	h, err := windows.OpenProcess(windows.PROCESS_TERMINATE|windows.PROCESS_QUERY_LIMITED_INFORMATION, false, uint32(pid))
	if err == windows.ERROR_INVALID_PARAMETER {
		return nil // the process does not exist
	}
	if err != nil {
		return err
	}
	defer windows.CloseHandle(h)
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(h, &created, &exited, &kernel, &user); err != nil ||
		filetimeTicks(created) != startTicks {
		return err
	}
	return windows.TerminateProcess(h, 1)
}
