package process

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/windows"
)

// blockers are what keeps programs from running, by the error that Windows has for each, and
// the log that says more, below Applications and Services Logs, Microsoft, Windows.
var blockers = []struct {
	code     syscall.Errno
	who, log string
}{
	{windows.ERROR_ACCESS_DISABLED_BY_POLICY, "AppLocker or a software restriction policy", "AppLocker, EXE and DLL"},
	{windows.ERROR_SYSTEM_INTEGRITY_POLICY_VIOLATION, "an App Control policy (WDAC)", "CodeIntegrity, Operational"},
	{windows.ERROR_VIRUS_INFECTED, "the virus scanner", "Windows Defender, Operational"},
}

// WhoBlocks has an error of a program's start name who does not let it run, if that is why.
func WhoBlocks(program string, err error) error {
	for _, b := range blockers {
		if errors.Is(err, b.code) {
			return fmt.Errorf("%s blocks %s (error %d; see Event Viewer: Microsoft, Windows, %s); an administrator can allow it: %w", b.who, program, int(b.code), b.log, err)
		}
	}
	return err
}
