package socket

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

// PeerOf returns the identity of the process at the other end of a connection. The kernel recorded the identity
// when the connection was made.
func PeerOf(c net.Conn) (Peer, error) {
	var cred *unix.Ucred
	var groups []int
	err := withSocketFD(c, func(fd int) (err error) {
		if cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return fmt.Errorf("check that no sandbox forbids the system call getsockopt: %w", err)
		}
		groups, err = peerGroups(fd)
		return err
	})
	if err != nil {
		return Peer{}, fmt.Errorf("cannot determine which account is at the other end of the socket: %w", err)
	}
	if cred.Uid == kernelOverflowID && !isIDMapped("uid_map", kernelOverflowID) {
		return Peer{}, queue.Errorf(queue.CodeDenied,
			"service and client cannot identify each other in different user namespaces (containers); run both in the same one")
	}
	p := Peer{UID: int(cred.Uid), GID: int(cred.Gid), PID: int(cred.Pid), Groups: groups}
	if (p.GID == kernelOverflowID || slices.Contains(groups, kernelOverflowID)) &&
		!isIDMapped("gid_map", kernelOverflowID) {
		p.Groups = slices.DeleteFunc(groups, func(g int) bool { return g == kernelOverflowID })
		if p.GID == kernelOverflowID {
			p.GID = noGroupID
		}
	}
	return p, nil
}

// noGroupID is the gid for a group that this user namespace does not map. No group has this number.
const noGroupID = -1

// peerGroups first tries a buffer for initialGroupCapacity group ids. maxGroups is the maximum number of groups of a
// process.
const (
	initialGroupCapacity = 32
	maxGroups            = 1 << 16
)

// peerGroups returns the supplementary groups that the peer had when the connection was made. A sandbox may emulate the
// kernel without this socket option; there peerGroups returns none.
func peerGroups(fd int) ([]int, error) {
	list := make([]uint32, initialGroupCapacity)
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

// kernelOverflowID is the uid and gid that the kernel reports for an id that the user namespace does not map. If the
// namespace maps kernelOverflowID itself, it is an ordinary account.
const kernelOverflowID = 65534

// isIDMapped reports whether the user namespace of this process maps a uid or gid. idMapFile is uid_map or
// gid_map; see user_namespaces(7).
func isIDMapped(idMapFile string, id int64) bool {
	raw, err := os.ReadFile("/proc/self/" + idMapFile)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(raw)) {
		var innerStart, outerStart, idCount int64
		if _, err := fmt.Sscan(line, &innerStart, &outerStart, &idCount); err == nil &&
			innerStart <= id && id-innerStart < idCount {
			return true
		}
	}
	return false
}

// CallerMayReadReply says whether the goroutine that waits for an answer may read from the connection itself. If it
// may, the client needs no other goroutine that reads. Then no goroutine reads between requests, so the client calls
// IsClosedByPeer to find out whether the service has closed the connection.
const CallerMayReadReply = true

// IsClosedByPeer reports whether the other end has closed the connection in both directions.
func IsClosedByPeer(c net.Conn) bool {
	gone := false
	err := withSocketFD(c, func(fd int) error {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(fds, 0)
		for err == unix.EINTR { // signals that the Go runtime sends interrupt poll
			_, err = unix.Poll(fds, 0)
		}
		gone = fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
		return err
	})
	return gone || err != nil
}

func withSocketFD(c net.Conn, f func(fd int) error) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return errors.New("the connection is not a Unix socket; this is a bug in queuectl; please report it")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return err
	}
	var callErr error
	if err = raw.Control(func(fd uintptr) { callErr = f(int(fd)) }); err != nil {
		return errors.New("the connection was closed; try again")
	}
	return callErr
}
