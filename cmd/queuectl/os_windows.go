package main

import (
	"context"
	"log/slog"

	"github.com/queuectl/queuectl/internal/session"
)

// contextUntilStopSignal returns a context that ends when the user logs off or the machine shuts down.
func contextUntilStopSignal(ctx context.Context, log *slog.Logger) (context.Context, context.CancelFunc) {
	ctx, end, err := session.NotifyContext(ctx, session.RunnerShutdownLevel)
	if err != nil {
		log.Warn("cannot detect when the user logs off; jobs that run at that time may be recorded as lost", "error", err)
	}
	return ctx, end
}
