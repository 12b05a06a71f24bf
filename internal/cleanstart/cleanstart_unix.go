//go:build unix && !linux

package cleanstart

import "golang.org/x/sys/unix"

// ResetInheritedAttributes only calls SetCloseOnExec. It resets nothing else, because queuectl runs no jobs on this
// operating system.
func ResetInheritedAttributes() {
	SetCloseOnExec()
}

// SetCloseOnExec sets the close-on-exec flag of every descriptor except 0, 1 and 2. So a program that
// this process starts inherits only the descriptors that are passed to it explicitly.
func SetCloseOnExec() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	for fd := 3; fd < int(min(limit.Cur, 10240)); fd++ {
		unix.CloseOnExec(fd)
	}
	return nil
}

// DescribeInheritedAttributes reports nothing.
func DescribeInheritedAttributes() []string { return nil }
