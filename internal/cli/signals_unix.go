//go:build unix

package cli

import (
	"os"
	"syscall"
)

// StopSignals make a service stop gracefully. ReloadSignals make a service reload its settings.
var (
	StopSignals   = []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	ReloadSignals = []os.Signal{syscall.SIGHUP}
)
