package runner

import (
	"context"
	"log/slog"

	"github.com/queuectl/queuectl/runner/process"
)

// Porter starts root's runners; there are none.
func Porter(context.Context, []string, string, string, int, int, *slog.Logger) error {
	return process.ErrUnsupported
}
