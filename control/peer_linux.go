package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/queue"
)

// PeerOf asks the kernel who is at the other end. What it says is of the moment
// when the connection was made.
func PeerOf(c net.Conn) (Peer, error) {
	var cred *unix.Ucred
	var groups []int
	err := onSocket(c, func(fd int) (err error) {
		if cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			groups, err = groupsOf(fd)
		}
		return err
	})
	if err != nil {
		return Peer{}, fmt.Errorf("identify the user at the other end of the socket: %w", err)
	}
	if cred.Uid == overflowID && !mapped("uid_map", overflowID) {
		return Peer{}, queue.Errorf(queue.CodeDenied, "the user at the other end of the socket is unknown in this user namespace; connect from outside the namespace")
	}
	p := Peer{UID: int(cred.Uid), GID: int(cred.Gid), PID: int(cred.Pid), Groups: groups}
	if (p.GID == overflowID || slices.Contains(groups, overflowID)) && !mapped("gid_map", overflowID) {
		p.Groups = slices.DeleteFunc(groups, func(g int) bool { return g == overflowID })
		if p.GID == overflowID {
			p.GID = noGroup
		}
	}
	return p, nil
}

// noGroup is the number of a group that this user namespace does not know: no group
// has it.
const noGroup = -1

// firstGroups is how many groups there is room for at first, maxGroups how many a
// process can have at most.
const (
	firstGroups = 32
	maxGroups   = 1 << 16
)

// groupsOf asks the kernel for the groups of the other end: those that it was a member
// of when the connection was made. A kernel that does not know (before 4.13) names
// none.
func groupsOf(fd int) ([]int, error) {
	list := make([]uint32, firstGroups)
	for {
		size := uint32(4 * len(list))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&list[0])), uintptr(unsafe.Pointer(&size)), 0)
		n := int(size / 4)
		switch {
		case errno == unix.ERANGE && n > len(list) && n <= maxGroups:
			list = make([]uint32, n)
			continue
		case errno == unix.ENOPROTOOPT:
			return nil, nil
		case errno != 0:
			return nil, fmt.Errorf("cannot read the user's groups from the socket: %w", errno)
		}
		groups := make([]int, n)
		for i := range groups {
			groups[i] = int(list[i])
		}
		return groups, nil
	}
}

// overflowID is what the kernel says for every user, or group, that a user namespace
// has no number for. Outside of one it is an account as any other, usually nobody.
const overflowID = 65534

// mapped reports whether this process's user namespace has a uid or gid; see
// user_namespaces(7).
func mapped(file string, id int64) bool {
	raw, err := os.ReadFile("/proc/self/" + file)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(raw)) {
		var inside, outside, n int64
		if _, err := fmt.Sscan(line, &inside, &outside, &n); err == nil && inside <= id && id-inside < n {
			return true
		}
	}
	return false
}

// readsAlone reports whether a caller that only waits for its answer reads the connection itself:
// where hungUp tells that one has ended which nobody reads.
const readsAlone = true

// hungUp reports whether the other end is closed for both ways.
func hungUp(c net.Conn) bool {
	gone := false
	err := onSocket(c, func(fd int) error {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(fds, 0)
		for err == unix.EINTR { // by the runtime's own signals: it says nothing of the client
			_, err = unix.Poll(fds, 0)
		}
		gone = fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
		return err
	})
	return gone || err != nil
}

func onSocket(c net.Conn, f func(fd int) error) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return errors.New("the connection is not a Unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = f(int(fd)) })
	return errors.Join(err, inner)
}
