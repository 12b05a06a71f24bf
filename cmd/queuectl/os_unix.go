//go:build unix

package main

import (
	"context"
	"log/slog"
	"os/signal"
	"syscall"
)

// untilTold ends when a runner is told to end: a terminal's signals are not its own.
func untilTold(ctx context.Context, _ *slog.Logger) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGTERM)
}
