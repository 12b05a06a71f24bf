package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/logs"
	"github.com/queuectl/queuectl/service"
)

// servePrivate runs the service for one `queuectl run --private`, in the same process. It calls onReady when the
// service accepts requests.
func servePrivate(ctx context.Context, c *cli.App, onReady func()) error {
	o, err := (&app{c}).serveOptions("0", "")
	if err != nil {
		return err
	}
	// Never remove old ended jobs, because the next `queuectl run` of the same job list would run their
	// commands again.
	for _, key := range []string{"retention_completed", "retention_cancelled", "retention_dead"} {
		o.Flags[key] = "never"
	}
	o.Flags["retention_max_jobs"] = "0"
	// Use SQLite even if the machine's settings name another store.
	o.Flags["store"], o.Flags["store_file"] = config.StoreSQLite, "none"
	log, err := logs.Open(filepath.Join(o.Paths.StateDir, config.LogName))
	if err != nil {
		return err
	}
	o.LogFile, o.LogIsTerminal, o.StartedOnDemand = log, false, true
	o.AllowSlowReaders = true // the program that reads the jobs' output may pause; do not disconnect it
	o.OnDiskFull = func(err error) {
		fmt.Fprintf(c.Stderr, "queuectl: %v; the jobs continue once there is space on the disk\n", err)
	}
	o.OnConcurrencyLimit = newProcsTuner().raiseProcs
	tuneGC()
	o.OnReady = onReady
	return service.Run(ctx, o, nil)
}
