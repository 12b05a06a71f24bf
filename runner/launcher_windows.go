package runner

import (
	"context"
	"log/slog"

	"github.com/queuectl/queuectl/runner/process"
)

// Launch starts root's runners; there are none.
func Launch(context.Context, []string, string, string, int, int, *slog.Logger) error {
	return process.ErrUnsupported
}
