package main

import (
	"context"
	"os/signal"
	"syscall"
)

// untilTold ends when a runner is told to end: its user logs off, or the machine goes down.
func untilTold(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGTERM)
}
