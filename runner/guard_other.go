//go:build !linux

package runner

import (
	"log/slog"

	"github.com/queuectl/queuectl/runner/process"
)

// guard is the process that ends children of a runner of root's that hang.
type guard struct{}

func startGuard([]string, string, *slog.Logger) (*guard, error) { return nil, process.ErrUnsupported }

func (g *guard) look() {}

func (g *guard) end() {}

// Guard guards the runner of a folder.
func Guard(string) error { return process.ErrUnsupported }
