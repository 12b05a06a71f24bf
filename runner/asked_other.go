//go:build !linux

package runner

import (
	"net"
	"os"

	"github.com/queuectl/queuectl/runner/process"
)

// Asked is a runner of root's that somebody has asked for by a connection.
type Asked struct {
	Options
	// Undivided is why jobs get no control groups though the system handed one over.
	Undivided error
	// Ended says that a runner was to be ended, which has been done.
	Ended bool
}

// Accept takes the connection on standard input.
func Accept(string, string, bool) (*Asked, error) { return nil, process.ErrUnsupported }

// Tell answers whoever asked.
func (a *Asked) Tell(string) {}

// Refuse tells whoever asked why there is no runner.
func (a *Asked) Refuse(error) {}

func (h Home) say(...string) (string, error) { return "", process.ErrUnsupported }

// peerUID is this process's own: only it can enter the folder of the socket.
func peerUID(net.Conn) (int, error) { return os.Geteuid(), nil }

// peerPID is the process that has made the socket at the other end; it is not asked for here.
func peerPID(net.Conn) int64 { return 0 }
