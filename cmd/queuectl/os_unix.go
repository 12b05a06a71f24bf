//go:build unix

package main

import (
	"context"
	"log/slog"
	"os/signal"
	"syscall"
)

// stopCtx returns a context that ends when the runner receives SIGTERM.
func stopCtx(ctx context.Context, _ *slog.Logger) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGTERM)
}
