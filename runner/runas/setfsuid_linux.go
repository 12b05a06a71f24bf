package runas

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// callWithIdentity calls f with the file rights of an account, and with no other file rights (setfsuid(2)). f must do
// its work in the goroutine in which it is called, because only the thread of this goroutine has these rights. While f
// runs, the thread has no capabilities: with root's capabilities, f could open the directories of any process through
// links in /proc. See docs/decisions/0053.
func callWithIdentity(id *Identity, f func() error) error {
	runtime.LockOSThread() // setfsuid changes the ids of this thread only
	defer runtime.UnlockOSThread()
	defer restoreIdentity()
	if err := setFileIdentity(id); err != nil {
		return ClassifyAccountSwitchError(err)
	}
	if err := setCapabilities(false); err != nil {
		return &ResourceShortageError{Err: err}
	}
	return f()
}

// restoreIdentity gives the calling thread the rights of this process again. This can only fail for lack of kernel
// memory, so restoreIdentity retries. After maxRestoreRetries retries it panics, because the thread must not continue
// with the rights of another account.
func restoreIdentity() {
	for retries := 0; ; retries++ {
		err := errors.Join(setCapabilities(true), setFileIdentity(processIdentity()))
		if err == nil {
			return
		}
		if retries == maxRestoreRetries {
			panic("process: " + err.Error())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// maxRestoreRetries is how many times restoreIdentity retries.
const maxRestoreRetries = 1000

// processIdentity returns the identity of this process.
var processIdentity = sync.OnceValue(func() *Identity {
	id := &Identity{UID: uint32(unix.Geteuid()), GID: uint32(unix.Getegid())}
	groups, _ := unix.Getgroups() // cannot fail for the calling process
	for _, g := range groups {
		id.Groups = append(id.Groups, uint32(g))
	}
	return id
})

// setFileIdentity gives this thread the file rights of an account. The thread must have the capabilities to set its
// groups and file ids. After an error, the thread may already have other groups.
func setFileIdentity(id *Identity) error {
	var groups *uint32
	if len(id.Groups) > 0 {
		groups = &id.Groups[0]
	}
	if _, _, failed := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(id.Groups)), uintptr(unsafe.Pointer(groups)),
		0); failed != 0 {
		return fmt.Errorf("cannot open files as uid %d, because the runner cannot switch to its groups; give the runner "+
			"the capability SETGID: %w", id.UID, failed)
	}
	// These calls return no error, so the code below checks the new ids.
	unix.RawSyscall(unix.SYS_SETFSGID, uintptr(id.GID), 0, 0)
	unix.RawSyscall(unix.SYS_SETFSUID, uintptr(id.UID), 0, 0)
	const invalidID = ^uintptr(0) // setting an invalid id changes nothing and returns the current id
	gid, _, _ := unix.RawSyscall(unix.SYS_SETFSGID, invalidID, 0, 0)
	uid, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, invalidID, 0, 0)
	if uint32(uid) != id.UID || uint32(gid) != id.GID {
		return fmt.Errorf("cannot open files as uid %d, because the runner cannot switch to this account; give the runner "+
			"the capabilities SETUID and SETGID: %w", id.UID, unix.EPERM)
	}
	return nil
}

// setCapabilities enables or disables all capabilities of this thread.
func setCapabilities(enabled bool) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var capSets [2]unix.CapUserData // 32 capabilities each
	if err := unix.Capget(&header, &capSets[0]); err != nil {
		return fmt.Errorf("cannot read the capabilities of the runner: %w; check whether a sandbox (seccomp) forbids "+
			"capget", err)
	}
	for i := range capSets {
		capSets[i].Effective = 0
		if enabled {
			capSets[i].Effective = capSets[i].Permitted
		}
	}
	if err := unix.Capset(&header, &capSets[0]); err != nil {
		return fmt.Errorf("cannot take over the capabilities of the runner for a lookup of files: %w", err)
	}
	return nil
}
