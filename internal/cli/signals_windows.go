package cli

import (
	"os"
	"syscall"
)

// StopSignals make a service stop gracefully. Windows sends SIGTERM when the user closes the console. ReloadSignals
// make a service reload its settings. Windows has no signals for this.
var (
	StopSignals   = []os.Signal{syscall.SIGTERM, os.Interrupt}
	ReloadSignals = []os.Signal{}
)
