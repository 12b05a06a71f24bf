//go:build unix

package main

import (
	"context"
	"io"
	"os/signal"

	"github.com/queuectl/queuectl/internal/cli"
)

// leaveConsole lets go of a console that was made for this process alone, which is never.
func leaveConsole() {}

// untilTold ends when a service is told to stop by a signal.
func untilTold(ctx context.Context, _ io.Writer) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, cli.StopSignals...)
}
