package runner

import (
	"context"
	"log/slog"
	"net"
	"os"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

const maxSlots = 4096 // so many workers at most

// table is the running table of this runner.
type table struct{}

func makeTable(string, os.FileMode, int, int64) (*table, error) { return nil, process.ErrUnsupported }

func (t *table) reserve(int) (int, error)       { return 0, process.ErrUnsupported }
func (t *table) begin(int64, wire.Lease, int64) {}
func (t *table) forked(int64, int)              {}
func (t *table) end(int64)                      {}

func readTable(string) (int, int64, []wire.Attempt, error) {
	return 0, 0, nil, process.ErrUnsupported
}

// lockFile takes an exclusive lock that ends with this process.
func lockFile(string, os.FileMode) (*os.File, bool, error) { return nil, false, process.ErrUnsupported }

// lockHeld reports whether a process holds a lock.
func lockHeld(string) (bool, error) { return false, process.ErrUnsupported }

// Lock takes root's runners for this service; there are none.
func (h Home) Lock() (*os.File, error) { return nil, nil }

// openPlain opens a file of a runner's folder to read it.
func openPlain(path string) (*os.File, error) { return os.Open(path) }

func (h Home) spawn(bool) (string, error) { return "", process.ErrUnsupported }

// Ready prints the line that Spawn waits for.
func Ready(string) {}

func writeNow(net.Conn, []byte) int { return 0 }

// Porter starts root's runners.
func Porter(context.Context, []string, string, string, int, int, *slog.Logger) error {
	return process.ErrUnsupported
}
