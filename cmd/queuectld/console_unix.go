//go:build unix

package main

import (
	"context"
	"io"
	"os/signal"

	"github.com/queuectl/queuectl/internal/cli"
)

// detachConsole does nothing, because only Windows creates a console for a process.
func detachConsole() {}

// contextUntilStopSignal returns a context that ends when the service receives a stop signal.
func contextUntilStopSignal(ctx context.Context, _ io.Writer) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, cli.StopSignals...)
}
