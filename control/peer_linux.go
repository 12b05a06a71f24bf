package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/queue"
)

// PeerOf asks the kernel who is at the other end. What it says is of the moment
// when the connection was made.
func PeerOf(c net.Conn) (Peer, error) {
	var cred *unix.Ucred
	err := onSocket(c, func(fd int) (err error) {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	if err != nil {
		return Peer{}, fmt.Errorf("ask who is there: %w", err)
	}
	if cred.Uid == overflowUID && !mapped(overflowUID) {
		return Peer{}, queue.Errorf(queue.CodeDenied, "the other end is a user that this user namespace does not know; call from outside of it")
	}
	return Peer{UID: int(cred.Uid), PID: int(cred.Pid)}, nil
}

// overflowUID is what the kernel says for every user that a user namespace has
// no number for. Outside of one it is an account as any other, usually nobody.
const overflowUID = 65534

// mapped reports whether this process's user namespace has a uid; see
// user_namespaces(7).
func mapped(uid int64) bool {
	raw, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(raw)) {
		var inside, outside, n int64
		if _, err := fmt.Sscan(line, &inside, &outside, &n); err == nil && inside <= uid && uid-inside < n {
			return true
		}
	}
	return false
}

// hungUp reports whether the other end is closed for both ways.
func hungUp(c net.Conn) bool {
	gone := false
	err := onSocket(c, func(fd int) error {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(fds, 0)
		gone = fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
		return err
	})
	return gone || err != nil
}

func onSocket(c net.Conn, f func(fd int) error) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return errors.New("not a Unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = f(int(fd)) })
	return errors.Join(err, inner)
}
