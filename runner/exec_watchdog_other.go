//go:build !linux

package runner

import (
	"log/slog"

	"github.com/queuectl/queuectl/runner/process"
)

// execWatchdog is the process that ends children of a runner of root's that hang.
type execWatchdog struct{}

func startExecWatchdog([]string, string, *slog.Logger) (*execWatchdog, error) {
	return nil, process.ErrUnsupported
}

func (g *execWatchdog) look() {}

func (g *execWatchdog) end() {}

// RunExecWatchdog watches the runner of a folder.
func RunExecWatchdog(string) error { return process.ErrUnsupported }
