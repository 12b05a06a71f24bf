package process

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// as calls f with the rights that somebody has on files, and no others: what f names,
// opens and makes is looked up, allowed and owned as if he did it (setfsuid(2)), without
// a capability: with one of root's, /proc would lead into the folders of any process.
// Nil calls it as this process. f must not leave its goroutine.
// See docs/decisions/0053.
func as(id *Identity, f func() error) error {
	if id == nil {
		return f()
	}
	runtime.LockOSThread() // the ids of this thread alone are changed
	defer runtime.UnlockOSThread()
	defer comeBack()
	if err := become(id); err != nil {
		return ofAccount(err)
	}
	if err := setCapable(false); err != nil {
		return &shortageError{err}
	}
	return f()
}

// comeBack gives this thread its own rights again. With others' it can do nothing that it
// is for; what it waits for, if it fails, is memory of the kernel's.
func comeBack() {
	for tries := 0; ; tries++ {
		err := errors.Join(setCapable(true), become(ownIdentity()))
		if err == nil {
			return
		}
		if tries == maxComeBack {
			panic("process: " + err.Error())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// maxComeBack is how often that is tried again.
const maxComeBack = 1000

// ownIdentity is this process's own.
var ownIdentity = sync.OnceValue(func() *Identity {
	id := &Identity{UID: uint32(unix.Geteuid()), GID: uint32(unix.Getegid())}
	groups, _ := unix.Getgroups() // of a process that is itself it cannot fail
	for _, g := range groups {
		id.Groups = append(id.Groups, uint32(g))
	}
	return id
})

// become changes this thread's rights on files, for which it must be capable. The group
// and groups are changed while it is not certain yet that the uid can be.
func become(id *Identity) error {
	var first *uint32
	if len(id.Groups) > 0 {
		first = &id.Groups[0]
	}
	if _, _, failed := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(id.Groups)), uintptr(unsafe.Pointer(first)), 0); failed != 0 {
		return fmt.Errorf("switch to the groups of uid %d: %w", id.UID, failed)
	}
	unix.RawSyscall(unix.SYS_SETFSGID, uintptr(id.GID), 0, 0) // it says what was, not whether it worked
	unix.RawSyscall(unix.SYS_SETFSUID, uintptr(id.UID), 0, 0)
	const none = ^uintptr(0) // changes nothing
	gid, _, _ := unix.RawSyscall(unix.SYS_SETFSGID, none, 0, 0)
	uid, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, none, 0, 0)
	if uint32(uid) != id.UID || uint32(gid) != id.GID {
		return fmt.Errorf("switch to the rights of uid %d: %w", id.UID, unix.EPERM)
	}
	return nil
}

// setCapable has the capabilities of this thread hold, or none of them.
func setCapable(yes bool) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData // of 32 capabilities each
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("read this thread's capabilities: %w", err)
	}
	for i := range sets {
		sets[i].Effective = 0
		if yes {
			sets[i].Effective = sets[i].Permitted
		}
	}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("change this thread's capabilities: %w", err)
	}
	return nil
}
