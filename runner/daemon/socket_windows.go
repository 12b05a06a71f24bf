package daemon

import (
	"context"
	"log/slog"
)

// maintain does nothing: other processes can remove neither the name of a pipe nor a directory with
// open files.
func (s *socket) maintain(context.Context, *slog.Logger) (dirGone bool) { return false }
