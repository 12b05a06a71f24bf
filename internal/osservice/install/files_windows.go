package install

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/copies"
)

// installRunnerCopy copies the runner program into a directory next to it. Runners execute the copy, because they may
// still run during an upgrade. If they executed the installed file itself, Windows would ask for a restart before it
// replaces that file.
func installRunnerCopy(clientPath string) error {
	path, err := copies.EnsureCopy(clientPath, copies.CopiesDir(clientPath))
	if err == nil {
		err = checkProgramNotReplaceable(path, accounts.ReadSecurityDescriptor)
	}
	return err
}

// removeUnusedRunnerCopies removes the copies of other versions of the runner program, except those that are running.
func removeUnusedRunnerCopies(clientPath string) {
	dir := copies.CopiesDir(clientPath)
	if now, err := copies.FindCopy(clientPath, dir); err == nil {
		copies.RemoveCopies(dir, now)
	}
}

// removeRunnerCopies removes all copies of the runner program. Runners end shortly after their service, so
// removeRunnerCopies waits up to fileReleaseTimeout for running copies. It returns an error if a copy runs longer, for
// example for a user's own service.
func removeRunnerCopies(clientPath string) error {
	end := time.Now().Add(fileReleaseTimeout)
	for ; !copies.RemoveCopies(copies.CopiesDir(clientPath)); time.Sleep(serviceStatePollInterval) {
		if time.Now().After(end) {
			return fmt.Errorf("a program in %s is still running; remove this folder after the program has ended",
				copies.CopiesDir(clientPath))
		}
	}
	return nil
}

// fileReleaseTimeout bounds how long the program waits until the processes of a stopped service have released its
// files.
const fileReleaseTimeout = 5 * time.Second

// removeProfile removes the profile of an account: the directory below C:\Users and the part of the
// registry that Windows creates when the account first runs a program.
func removeProfile(sid string) error {
	call := windows.NewLazySystemDLL("userenv.dll").NewProc("DeleteProfileW")
	if call.Find() != nil {
		return nil // Wine has no such function and creates no profiles
	}
	sid16, err := windows.UTF16PtrFromString(sid)
	if err != nil {
		return err
	}
	for end := time.Now().Add(fileReleaseTimeout); ; time.Sleep(serviceStatePollInterval) {
		ok, _, err := call.Call(uintptr(unsafe.Pointer(sid16)), 0, 0)
		switch {
		case ok != 0, errors.Is(err, windows.ERROR_FILE_NOT_FOUND):
			return nil
		// Try again for some time, because Windows unloads the profile a while after the service has stopped.
		case time.Now().After(end):
			return err
		}
	}
}
