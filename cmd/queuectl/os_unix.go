//go:build unix

package main

import (
	"context"
	"log/slog"
	"os/signal"
	"syscall"
)

// contextUntilStopSignal returns a context that ends when the runner receives SIGTERM.
func contextUntilStopSignal(ctx context.Context, _ *slog.Logger) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGTERM)
}
