//go:build unix

package main

import (
	"context"
	"os/signal"
	"syscall"
)

// untilTold ends when a runner is told to end: a terminal's signals are not its own.
func untilTold(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGTERM)
}
