package process

import (
	"fmt"

	"golang.org/x/sys/windows"
)

// End ends the process with this number, if it started at these ticks: a number is given
// to another process once its own has ended.
func End(pid int, started int64, _ *uint32) error {
	h, err := windows.OpenProcess(windows.PROCESS_TERMINATE|windows.PROCESS_QUERY_LIMITED_INFORMATION, false, uint32(pid))
	if err == windows.ERROR_INVALID_PARAMETER {
		return nil // there is none
	}
	if err != nil {
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	defer windows.CloseHandle(h)
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(h, &created, &exited, &kernel, &user); err != nil || ticks(created) != started {
		return err
	}
	if err := windows.TerminateProcess(h, 1); err != nil {
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	return nil
}

// AskToEnd ends the process: a process without a window cannot be asked.
func AskToEnd(pid int, ticks int64, of *uint32) error { return End(pid, ticks, of) }

// Owns reports whether a process is an account's; here accounts have no such numbers.
func Owns(uint32, int) bool { return false }
