package process

import "golang.org/x/sys/windows"

// Kill ends the process with this pid and this start time, in units of 100 ns since 1601. A different start time
// means that Windows has given the pid to another process; Kill then does nothing.
func Kill(pid int, startTicks int64, _ *uint32) error {
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

// Terminate does the same as Kill, because Windows cannot ask a process without a window to end.
func Terminate(pid int, startTicks int64, ownerUID *uint32) error {
	return Kill(pid, startTicks, ownerUID)
}
