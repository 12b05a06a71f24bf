//go:build !linux

package launcher

import "github.com/queuectl/queuectl/runner/process"

// Grant says as which runner this process may run. Only Linux has runners that a service requests.
type Grant struct {
	Root, Tmpdir string
	Alone        bool
	Service      int
	Policy       string
	Credentials  map[string][]byte
	Cgroups      *process.Cgroups
	Undivided    error
	Ended        bool
}

// Accept returns process.ErrUnsupported.
func Accept(string, string, bool) (*Grant, error) { return nil, process.ErrUnsupported }

// ReplyReady does nothing.
func (g *Grant) ReplyReady(string) {}

// ReplyError does nothing.
func (g *Grant) ReplyError(error) {}
