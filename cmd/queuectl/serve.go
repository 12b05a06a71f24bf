package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/systemd"
	"github.com/queuectl/queuectl/internal/timerslack"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/service"
)

func serveVerb(a *app) *cobra.Command {
	var workers, file string
	var keep, background, managed bool
	var unit string
	var root service.Runners
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the service in the foreground", Args: exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := timerslack.Restart(); err != nil {
				return err
			}
			serve := func(ctx context.Context, m *manager) error {
				o, err := a.serveOptions(workers, file)
				if err != nil {
					return &service.ExitError{Code: service.ExitConfig, Err: err}
				}
				o.KeepJobs, o.Background, o.Unit, o.Runners = keep, background, systemd.Unit(unit), root
				o.Crowded = fewPlaces().crowded
				tuneGC()
				return a.serve(ctx, o, m)
			}
			if managed {
				return byManager(cmd.Context(), serve)
			}
			return serve(cmd.Context(), nil)
		},
	}
	f := cmd.Flags()
	f.Var(filled{&workers}, "workers", "jobs that run at once: `N`, or auto")
	f.Var(filled{&file}, "config", "`FILE` of settings")
	f.BoolVar(&keep, "keep-jobs", false, "SIGTERM leaves jobs running, for the next service to adopt")
	f.Var(filled{&unit}, "unit", "with --keep-jobs: end the jobs all the same when systemd stops this `UNIT`")
	f.Var(filled{&root.Socket}, "runner-socket", "`PATH` of the socket that starts root's runners")
	f.BoolVar(&root.Own, "runner-own", false, "what that socket starts are not root's runners, but this account's own")
	root.Dir, root.Policy = config.RunnerDir, config.RunnerPolicy
	f.Var(filled{&root.Dir}, "runner-dir", "`FOLDER` of root's runners")
	f.Var(filled{&root.Policy}, "runner-policy", "`FILE` that says whose jobs root's runners run")
	f.BoolVar(&background, "background", false, "started by a client")
	f.Lookup("background").Hidden = true
	managedFlag(f, &managed)
	return cmd
}

// serveOptions puts everything below --dir, or into the user's own places.
func (a *app) serveOptions(workers, file string) (service.Options, error) {
	o := service.Options{Version: version, Flags: map[string]string{}, Log: a.err, Terminal: isTerminal(a.err)}
	var err error
	if a.dir != "" {
		dir, err := a.ownFolder()
		if err != nil {
			return o, err
		}
		o.Places = config.In(dir)
	} else if o.Places, err = config.User(); err != nil {
		return o, err
	}
	if a.socket != "" {
		if o.Places.Socket, err = newSocket("--socket", a.socket); err != nil {
			return o, err
		}
	}
	if file != "" {
		if err := isFile("--config", file); err != nil {
			return o, err
		}
		o.Places.File, o.NeedFile = file, true
	}
	if workers != "" {
		o.Flags["workers"] = workers
	}
	self, err := os.Executable()
	o.Runner = []string{self, "runner"}
	return o, err
}

// manager is a service manager that has started this process and is told by calls: it
// stops the service by ending its context.
type manager struct {
	service.Manager
	ready  func()
	reload <-chan os.Signal
}

// serve runs the service until it is told to stop: by m, or by signals where m is nil.
func (a *app) serve(ctx context.Context, o service.Options, m *manager) error {
	name := config.LogName
	if m != nil {
		name = config.ServiceLogName
	}
	if o.Background || m != nil {
		log, err := service.OpenLog(filepath.Join(o.Places.State, name))
		if err != nil {
			return err
		}
		o.Log, a.err = log, log
		if m != nil { // what this process dies of would be told to nobody
			debug.SetCrashOutput(log, debug.CrashOptions{}) // without it the service is no worse
		}
		leaveConsole()
	}
	o.Ready = func() { fmt.Fprintf(a.err, "queuectl: ready on %s\n", o.Places.Socket) }
	if m != nil {
		o.Manager = &m.Manager
		said := o.Ready
		o.Ready = func() { said(); m.ready() }
		err := service.Run(ctx, o, m.reload)
		if err != nil {
			fmt.Fprintf(a.err, "queuectl: %s\n", message(err))
		}
		return err
	}
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
	var alone, accepted, stop, watchdog bool
	var policy, unit, launcher string
	cmd := &cobra.Command{
		Use: "runner", Short: "Run attempts for the service", Hidden: true, Args: exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := service.RunnerLog(a.err)
			switch {
			case stop:
				return stopRunners(unit)
			case a.dir == "":
				return usage("runner is started by the service; people use serve")
			case launcher != "":
				return a.launcher(cmd.Context(), launcher, policy, log)
			case watchdog:
				signal.Notify(make(chan os.Signal, 1), append(stopSignals, reloadSignals...)...) // it ends with its runner
				return runner.RunExecWatchdog(a.dir)
			}
			if err := process.Prepare(); err != nil {
				return err
			}
			signal.Notify(make(chan os.Signal, 1), append(reloadSignals, os.Interrupt)...) // a terminal's signals are not ours
			ctx, end := untilTold(cmd.Context())
			defer end()
			o := runner.Options{Root: a.dir, Alone: alone, Service: os.Geteuid(), Ready: runner.Ready}
			refuse := func(error) {}
			if accepted {
				asked, err := runner.Accept(a.dir, policy, unit != "")
				if err != nil {
					return err
				}
				if asked.Ended {
					return nil
				}
				refuse = asked.Refuse
				if asked.Undivided != nil {
					log.Warn("jobs are not held by control groups, or not by all of them; then their processes are found by session and cookie", "error", asked.Undivided)
				}
				o = asked.Options
				o.Ready = asked.Tell
			}
			self, err := os.Executable()
			if err == nil {
				err = process.CheckLimits()
			}
			if err != nil {
				refuse(err)
				return err
			}
			o.Version, o.Log, o.Watchdog = version, log, []string{self, "runner", "--exec-watchdog"}
			if unit != "" {
				o.Unwanted, o.Ending = systemd.Unit(unit).Unwanted, systemd.Longer
			}
			err = runner.Serve(ctx, o)
			if err != nil {
				refuse(err)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVar(&alone, "alone", false, "run one job only")
	f.BoolVar(&accepted, "accepted", false, "standard input is the connection of the service that wants a runner of root's")
	f.StringVar(&policy, "policy", config.RunnerPolicy, "`FILE` that says whose jobs are run; none: those of this account")
	f.StringVar(&unit, "unit", "", "end once systemd has stopped this `UNIT`")
	f.StringVar(&launcher, "launcher", "", "start a runner for each connection that `UID:GID` makes")
	f.BoolVar(&watchdog, "exec-watchdog", false, "end what the runner of this folder starts and what hangs before it is a program of its own")
	f.BoolVar(&stop, "stop", false, "end all runners if systemd stops the unit")
	return cmd
}

// askStopFor bounds the question whether the unit is being stopped, of a process that has
// nothing else to do.
const askStopFor = 10 * time.Second

// runnersStopFor bounds the wait for runners that end.
const runnersStopFor = 80 * time.Second

// stopRunners ends root's runners if systemd is stopping the service's unit for good: it
// is called whenever the service has ended, also by a crash.
func stopRunners(unit string) error {
	if unit == "" {
		return usage("runner --stop needs the --unit of the service")
	}
	if systemd.Unit(unit).Stopping(askStopFor) {
		systemd.StopAll("queuectl-runner@*.service", runnersStopFor)
	}
	return nil
}

// launcher starts root's runners where no systemd does.
func (a *app) launcher(ctx context.Context, service, policy string, log *slog.Logger) error {
	uid, gid, _ := strings.Cut(service, ":")
	u, err1 := strconv.Atoi(uid)
	g, err2 := strconv.Atoi(gid)
	if err1 != nil || err2 != nil {
		return usage("--launcher is UID:GID, not %q", service)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	signal.Notify(make(chan os.Signal, 1), append(stopSignals, reloadSignals...)...) // it ends with its service
	return runner.Launch(ctx, []string{self, "runner"}, a.dir, policy, u, g, log)
}
