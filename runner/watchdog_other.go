//go:build !linux

package runner

import (
	"log/slog"
	"time"

	"github.com/queuectl/queuectl/runner/process"
)

// watchdog is the process that ends hanging children of a root runner, and the jobs of a dead runner.
// Only Linux has it.
type watchdog struct{}

func startWatchdog([]string, string, bool, *slog.Logger) (*watchdog, error) {
	return nil, process.ErrUnsupported
}

func (g *watchdog) checkStarts() {}

func (g *watchdog) setDeadline(time.Duration) {}

func (g *watchdog) end() {}

// RunWatchdog returns process.ErrUnsupported.
func RunWatchdog(string) error { return process.ErrUnsupported }
