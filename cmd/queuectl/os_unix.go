//go:build unix

package main

import (
	"context"
	"log/slog"
	"os/signal"
	"syscall"
)

// untilTold returns a context that ends when the runner receives SIGTERM. It ignores the signals of
// a terminal.
func untilTold(ctx context.Context, _ *slog.Logger) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGTERM)
}
