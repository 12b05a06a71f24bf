package daemon

import (
	"context"
	"log/slog"
)

// keepReachable does nothing: on Windows, other processes cannot remove the name of a pipe, or a directory
// with open files.
func (s *runnerSocket) keepReachable(context.Context, *slog.Logger) (dirGone bool) { return false }
