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

// servePrivateRun runs the service for one `queuectl run --private`, in the process of that command. It calls onReady
// when the service accepts requests.
func servePrivateRun(ctx context.Context, c *cli.App, onReady func()) error {
	o, err := (&app{c}).serveOptions("0", "")
	if err != nil {
		return err
	}
	// Never remove ended jobs. The next `queuectl run` of the same list of jobs runs only the jobs that are not in the
	// queue, so it would run a removed job again.
	for _, key := range []string{"retention_completed", "retention_cancelled", "retention_dead"} {
		o.FlagSettings[key] = "never"
	}
	o.FlagSettings["retention_max_jobs"] = "0"
	// Use SQLite even if the settings of the machine name another store.
	o.FlagSettings["store"], o.FlagSettings["store_file"] = config.StoreSQLite, "none"
	log, err := logs.OpenServiceLog(filepath.Join(o.Paths.StateDir, config.LogFileName))
	if err != nil {
		return err
	}
	o.LogFile, o.LogIsTerminal, o.StartedOnDemand = log, false, true
	o.AllowSlowReaders = true // the program that reads the jobs' output may pause; do not disconnect it
	o.OnDiskFull = func(err error) {
		fmt.Fprintf(c.Stderr, "queuectl: %v; the jobs continue once there is space on the disk\n", err)
	}
	o.OnConcurrencyLimit = newGOMAXPROCSTuner().raiseProcs
	tuneGC()
	o.OnReady = onReady
	return service.Run(ctx, o, nil)
}
