package daemon

import (
	"context"
	"log/slog"
)

// keepReachable does nothing: other processes can remove neither the name of a pipe nor a directory with
// open files.
func (s *socket) keepReachable(context.Context, *slog.Logger) (dirGone bool) { return false }
