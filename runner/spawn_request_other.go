//go:build !linux

package runner

import (
	"net"
	"os"

	"github.com/queuectl/queuectl/runner/process"
)

// SpawnRequest is a runner of root that a service requested through a connection. Only Linux has such
// runners.
type SpawnRequest struct {
	Options
	// Undivided is the reason why jobs get no control groups although the system delegated one.
	Undivided error
	// Ended reports that the request was to kill another runner, which has been done.
	Ended bool
}

// Accept returns process.ErrUnsupported.
func Accept(string, string, bool) (*SpawnRequest, error) { return nil, process.ErrUnsupported }

// Tell does nothing.
func (a *SpawnRequest) Tell(string) {}

// Refuse does nothing.
func (a *SpawnRequest) Refuse(error) {}

func (h Home) requestRunner(...string) (string, error) { return "", process.ErrUnsupported }

// peerUID returns the uid of this process: no other account can enter the directory of the socket.
func peerUID(net.Conn) (int, error) { return os.Geteuid(), nil }

// peerPID returns 0. This system's way to get the pid is not used.
func peerPID(net.Conn) int64 { return 0 }
