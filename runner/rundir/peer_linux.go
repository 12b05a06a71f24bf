package rundir

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// PeerCredentials returns the pid, uid and gid of the process at the other end of a Unix socket, as reported
// by the kernel.
func PeerCredentials(c net.Conn) (*unix.Ucred, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.New("the service's connection is not a Unix socket; check the systemd socket units")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var sockoptErr error
	err = raw.Control(func(fd uintptr) {
		cred, sockoptErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET,
			unix.SO_PEERCRED)
	})
	return cred, errors.Join(err, sockoptErr)
}

// PeerPID returns the pid of the process at the other end of a socket, or 0 if it is unknown.
func PeerPID(c net.Conn) int64 {
	cred, err := PeerCredentials(c)
	if err != nil {
		return 0
	}
	return int64(cred.Pid)
}

// CheckPeerAccount returns an error if the process at the other end of a socket belongs neither to the service's
// account nor to root. peerUID is the uid of that process, or -1 if it is unknown.
func CheckPeerAccount(c net.Conn, serviceUID int) (peerUID int, err error) {
	cred, err := PeerCredentials(c)
	if err != nil {
		return -1, err
	}
	if peerUID = int(cred.Uid); peerUID != 0 && peerUID != serviceUID {
		err = fmt.Errorf("only the service (uid %d) and root may connect", serviceUID)
	}
	return peerUID, err
}
