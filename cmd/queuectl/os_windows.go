package main

import (
	"context"
	"log/slog"

	"github.com/queuectl/queuectl/internal/session"
)

// untilTold ends when a runner is told to end: its user logs off, or the machine goes down.
func untilTold(ctx context.Context, log *slog.Logger) (context.Context, context.CancelFunc) {
	ctx, end, err := session.Notify(ctx, session.Runner)
	if err != nil {
		log.Warn("cannot detect when the user logs off; jobs that run at that time may be recorded as lost", "error", err)
	}
	return ctx, end
}
