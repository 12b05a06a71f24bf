//go:build !linux

package launcher

import (
	"log/slog"
	"time"

	"github.com/queuectl/queuectl/runner/process"
)

// Watchdog is the process that ends hanging children of a root runner, and the jobs of a dead runner.
// Only Linux has it.
type Watchdog struct{}

// StartWatchdog returns process.ErrUnsupported.
func StartWatchdog([]string, string, bool, *slog.Logger) (*Watchdog, error) {
	return nil, process.ErrUnsupported
}

// CheckStarts does nothing.
func (g *Watchdog) CheckStarts() {}

// SetDeadline does nothing.
func (g *Watchdog) SetDeadline(time.Duration) {}

// End does nothing.
func (g *Watchdog) End() {}

// RunWatchdog returns process.ErrUnsupported.
func RunWatchdog(string) error { return process.ErrUnsupported }
