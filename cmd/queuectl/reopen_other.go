//go:build !linux

package main

import (
	"os"
	"os/signal"

	"github.com/queuectl/queuectl/internal/cli"
)

// reopenLog ignores the signals on which the Linux runner reopens its log. On Windows an open file
// cannot be moved, and on other systems queuectl runs no jobs.
func reopenLog(*os.File, string) {
	if len(cli.ReloadSignals) > 0 {
		signal.Notify(make(chan os.Signal, 1), cli.ReloadSignals...)
	}
}
