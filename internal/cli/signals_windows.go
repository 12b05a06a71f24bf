package cli

import (
	"os"
	"syscall"
)

// StopSignals make a service stop gracefully. ReloadSignals make it reload its settings. Closing
// the console delivers SIGTERM.
var (
	StopSignals   = []os.Signal{syscall.SIGTERM, os.Interrupt}
	ReloadSignals = []os.Signal{}
)
