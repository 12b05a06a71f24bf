//go:build !linux

package runner

import (
	"log/slog"
	"time"

	"github.com/queuectl/queuectl/runner/process"
)

// watchdog is the process that ends children of a runner of root's that hang, and what a dead one has left.
type watchdog struct{}

func startWatchdog([]string, string, bool, *slog.Logger) (*watchdog, error) {
	return nil, process.ErrUnsupported
}

func (g *watchdog) look() {}

func (g *watchdog) until(time.Duration) {}

func (g *watchdog) end() {}

// RunWatchdog watches the runner of a folder.
func RunWatchdog(string) error { return process.ErrUnsupported }
