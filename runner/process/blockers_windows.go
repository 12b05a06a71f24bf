package process

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/windows"
)

// programBlockingFeatures lists the security features of Windows that can stop a program from running. code is the
// error code of a start that the feature has blocked. eventLog is the name of the event log that contains the details,
// below "Applications and Services Logs", "Microsoft", "Windows".
var programBlockingFeatures = []struct {
	code              syscall.Errno
	blocker, eventLog string
}{
	{windows.ERROR_ACCESS_DISABLED_BY_POLICY, "AppLocker or a software restriction policy", "AppLocker > EXE and DLL"},
	{windows.ERROR_SYSTEM_INTEGRITY_POLICY_VIOLATION, "an App Control policy (WDAC)", "CodeIntegrity > Operational"},
	{windows.ERROR_VIRUS_INFECTED, "the virus scanner", "Windows Defender > Operational"},
}

// ExplainBlockedProgram adds an explanation to err, the error of a failed start, if Windows has blocked the
// program. Otherwise it returns err unchanged.
func ExplainBlockedProgram(program string, err error) error {
	for _, b := range programBlockingFeatures {
		if errors.Is(err, b.code) {
			return fmt.Errorf("%s blocks %s (error %d: %w); an administrator can allow it; see Event Viewer: "+
				"Microsoft > Windows > %s", b.blocker, program, int(b.code), err, b.eventLog)
		}
	}
	return err
}
