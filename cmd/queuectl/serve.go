package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/timerslack"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/service"
)

func serveVerb(a *app) *cobra.Command {
	var workers, file string
	var keep, background bool
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the service in the foreground", Args: exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := timerslack.Restart(); err != nil {
				return err
			}
			o, err := a.serveOptions(workers, file)
			if err != nil {
				return &service.ExitError{Code: service.ExitConfig, Err: err}
			}
			o.KeepJobs, o.Background = keep, background
			o.Crowded = fewPlaces().crowded
			debug.SetGCPercent(200) // its heap is a few MB, which short jobs fill anew each second
			return a.serve(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.Var(filled{&workers}, "workers", "jobs that run at once: `N`, or auto")
	f.Var(filled{&file}, "config", "`FILE` of settings")
	f.BoolVar(&keep, "keep-jobs", false, "SIGTERM leaves jobs running, for the next service to adopt")
	f.BoolVar(&background, "background", false, "started by a client")
	f.Lookup("background").Hidden = true
	return cmd
}

// serveOptions puts everything below --dir, or into the user's own places.
func (a *app) serveOptions(workers, file string) (service.Options, error) {
	o := service.Options{Version: version, Flags: map[string]string{}, Log: a.err, Terminal: isTerminal(a.err)}
	var err error
	if a.dir != "" {
		dir, err := filepath.Abs(a.dir)
		if err != nil {
			return o, err
		}
		o.Places = config.In(dir)
	} else if o.Places, err = config.User(); err != nil {
		return o, err
	}
	if a.socket != "" {
		if o.Places.Socket, err = filepath.Abs(a.socket); err != nil {
			return o, err
		}
	}
	if file != "" {
		o.Places.File, o.NeedFile = file, true
	}
	if workers != "" {
		o.Flags["workers"] = workers
	}
	self, err := os.Executable()
	o.Runner = []string{self, "runner"}
	return o, err
}

func (a *app) serve(ctx context.Context, o service.Options) error {
	if o.Background {
		log, err := service.OpenLog(filepath.Join(o.Places.State, config.LogName))
		if err != nil {
			return err
		}
		o.Log, a.err = log, log
	}
	o.Ready = func() { fmt.Fprintf(a.err, "queuectl: ready on %s\n", o.Places.Socket) }
	ctx, stop := signal.NotifyContext(ctx, stopSignals...)
	defer stop()
	hup := make(chan os.Signal, 1)
	if len(reloadSignals) > 0 {
		signal.Notify(hup, reloadSignals...)
	}
	return service.Run(ctx, o, hup)
}

// runnerVerb is the second process. People do not start it.
func runnerVerb(a *app) *cobra.Command {
	alone := false
	cmd := &cobra.Command{
		Use: "runner", Short: "Run attempts for the service", Hidden: true, Args: exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.dir == "" {
				return usage("runner is started by the service; people use serve")
			}
			if err := process.Prepare(); err != nil {
				return err
			}
			signal.Notify(make(chan os.Signal, 1), append(reloadSignals, os.Interrupt)...) // a terminal's signals are not ours
			ctx, stop := signal.NotifyContext(cmd.Context(), stopSignals[:1]...)
			defer stop()
			return runner.Serve(ctx, a.dir, version, alone, service.RunnerLog(a.err), runner.Ready)
		},
	}
	cmd.Flags().BoolVar(&alone, "alone", false, "run one job only")
	return cmd
}

func serviceVerb(a *app) *cobra.Command {
	var keep bool
	stop := &cobra.Command{
		Use: "stop", Short: "Stop the running service as SIGTERM does", Args: exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.stopService(cmd.Context(), keep) },
	}
	stop.Flags().BoolVar(&keep, "keep-jobs", false, "leave jobs running, for the next service to adopt")
	status := &cobra.Command{
		Use: "status", Short: "Say whether the service runs", Args: exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			st, err := c.Status(cmd.Context(), control.Nothing{})
			if err != nil {
				return err
			}
			if a.structured() {
				return a.printJSON(map[string]any{"running": true, "pid": st.PID, "version": st.Version, "started_at": st.Started, "socket": st.Socket})
			}
			return a.println("running, pid " + strconv.Itoa(st.PID) + ", version " + st.Version)
		},
	}
	return group("service", "The service as the system sees it", stop, status)
}

// stopService asks the service to stop and waits until it has let go of its
// folder, so that another may start.
func (a *app) stopService(ctx context.Context, keep bool) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	st, err := c.Status(ctx, control.Nothing{})
	if err != nil {
		return err
	}
	got, err := c.ServiceStop(ctx, control.ServiceStop{KeepJobs: keep})
	if err != nil {
		return err
	}
	for service.InUse(st.Database) {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return queue.Errorf(queue.CodeUnavailable, "interrupted while the service stops")
		}
	}
	if a.structured() {
		return a.printJSON(got)
	}
	a.say("service with pid %d stopped", got.PID)
	return nil
}
