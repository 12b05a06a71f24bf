package register

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/copies"
)

// installRunner puts a copy of the program that runs jobs beside it. An installer's own file could not be
// kept while old runners run it: to remove one that runs Windows asks for a restart.
func installRunner(client string) error {
	path, err := copies.Make(client, copies.Beside(client))
	if err == nil {
		err = onlyTrustedReplace(path, accounts.AccessTo)
	}
	return err
}

// tidyRunners removes copies of other versions that nobody runs.
func tidyRunners(client string) {
	dir := copies.Beside(client)
	if now, err := copies.Find(client, dir); err == nil {
		copies.Remove(dir, now)
	}
}

// removeRunners removes all copies, but of those that somebody's own service runs: runners end a moment after their
// service.
func removeRunners(client string) error {
	for end := time.Now().Add(letGo); !copies.Remove(copies.Beside(client)); time.Sleep(lookEvery) {
		if time.Now().After(end) {
			return fmt.Errorf("a program in %s is still running; remove this folder after the program has ended", copies.Beside(client))
		}
	}
	return nil
}

// letGo bounds the wait until what a service has used is free once it has stopped.
const letGo = 5 * time.Second

// removeProfile removes the folder below C:\Users, and the part of the registry, that Windows makes for an account
// when it first runs something, if there is one.
func removeProfile(sid string) error {
	call := windows.NewLazySystemDLL("userenv.dll").NewProc("DeleteProfileW")
	if call.Find() != nil {
		return nil // Wine makes none
	}
	sid16, err := windows.UTF16PtrFromString(sid)
	if err != nil {
		return err
	}
	for end := time.Now().Add(letGo); ; time.Sleep(lookEvery) {
		ok, _, err := call.Call(uintptr(unsafe.Pointer(sid16)), 0, 0)
		switch {
		case ok != 0, errors.Is(err, windows.ERROR_FILE_NOT_FOUND):
			return nil
		case time.Now().After(end): // Windows unloads it some time after the service has stopped
			return err
		}
	}
}
