package launcher

import (
	"context"
	"log/slog"

	"github.com/queuectl/queuectl/runner/process"
)

// Launch returns an error, because Windows has no runners of root.
func Launch(context.Context, []string, string, string, int, int, *slog.Logger) error {
	return process.ErrUnsupported
}
