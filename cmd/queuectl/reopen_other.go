//go:build !linux

package main

import (
	"os"
	"os/signal"

	"github.com/queuectl/queuectl/internal/cli"
)

// reopenLog ignores the signals of a reload: on Windows an open file cannot be moved, and other
// systems run no jobs.
func reopenLog(*os.File, string) {
	if len(cli.ReloadSignals) > 0 {
		signal.Notify(make(chan os.Signal, 1), cli.ReloadSignals...)
	}
}
