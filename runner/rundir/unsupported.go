//go:build !linux

package rundir

import (
	"net"
	"os"
)

// isSafeToMap returns false, so that the journal uses no mappings. On this system it is unknown
// whether existing data can be overwritten through a mapping if the disk is full. Also, Windows cannot
// truncate a file while it is mapped.
func isSafeToMap(*os.File) bool { return false }

// PeerUID returns the uid of this process: no other account can enter the directory of the socket.
func PeerUID(net.Conn) (int, error) { return os.Geteuid(), nil }

// PeerPID returns 0, which means that the pid is unknown.
func PeerPID(net.Conn) int64 { return 0 }
