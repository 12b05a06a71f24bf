package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/cleanstart"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/connect"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/files"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/logs"
	"github.com/queuectl/queuectl/internal/osservice"
	"github.com/queuectl/queuectl/internal/systemd"
	"github.com/queuectl/queuectl/internal/tune"
	"github.com/queuectl/queuectl/service"
)

func serveVerb(a *app) *cobra.Command {
	var workers, settingsFile, systemdUnit string
	var keepJobs, inBackground, underServiceManager bool
	var externalRunners service.ExternalRunners
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the service in the foreground", Args: cli.ExactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			inherit := func() {}
			// A background service must not inherit the resource limits of the client that started it.
			if inBackground {
				inherit = cleanstart.ResetInheritedAttributes
			}
			if err := tune.RestartWithTimerSlack(inherit); err != nil {
				return err
			}
			files.RestrictUmaskToOwner()
			serve := func(ctx context.Context, m *serviceManager) error {
				o, err := a.serveOptions(workers, settingsFile)
				if err != nil {
					return &service.ExitError{Code: service.ExitCodeConfig, Err: err}
				}
				o.KeepJobsOnStop, o.StartedOnDemand, o.SystemdUnit, o.ExternalRunners =
					keepJobs, inBackground, systemd.Unit(systemdUnit), externalRunners
				o.OnConcurrencyLimit = newGOMAXPROCSTuner().raiseProcs
				started := osservice.ServiceProcess{ServiceKind: o.Paths.ServiceKind(), StartedOnDemand: inBackground,
					SystemdUnit: systemdUnit, ParentPID: os.Getppid()}
				o.StartAtBootAdvice = func() string { return osservice.BootAdvice(started) }
				if inBackground {
					o.InheritedRestrictions = cleanstart.DescribeInheritedAttributes()
				}
				tuneGC()
				return a.serve(ctx, o, m)
			}
			if underServiceManager {
				return runByServiceManager(cmd.Context(), serve)
			}
			return serve(cmd.Context(), nil)
		},
	}
	f := cmd.Flags()
	f.Var(input.NonEmptyValue(&workers), "workers", "run `N` jobs at the same time; auto means one per processor")
	f.Var(input.NonEmptyValue(&settingsFile), "config", "read the settings from `FILE`")
	f.BoolVar(&keepJobs, "keep-jobs", false, "let running jobs continue on SIGTERM; the service takes them over "+
		"when it starts again")
	f.Var(input.NonEmptyValue(&systemdUnit), "unit",
		"with --keep-jobs: keep jobs when systemd restarts the unit `NAME`, but not "+
			"when it stops the unit")
	f.Var(input.NonEmptyValue(&externalRunners.SpawnSocketPath), "runner-socket",
		"let the program that listens on the socket `FILE` start the runners, which run jobs; runners start as root "+
			"unless --runner-own is given")
	f.BoolVar(&externalRunners.SpawnsAsServiceAccount, "runner-own", false,
		"with --runner-socket: start the runners with the account of the service instead of root")
	externalRunners.RunnersDir, externalRunners.PolicyFile = config.RootRunnerDir, config.RootRunnerPolicyFile
	f.Var(input.NonEmptyValue(&externalRunners.RunnersDir), "runner-dir",
		"`DIR` for the data of the runners that run as root (default: "+config.RootRunnerDir+")")
	f.Var(input.NonEmptyValue(&externalRunners.PolicyFile), "runner-policy",
		"`FILE` that lists whose jobs the runners that run as root may start (default: "+config.RootRunnerPolicyFile+")")
	for _, name := range []string{"runner-dir", "runner-policy"} {
		f.Lookup(name).DefValue = "" // do not print the default in the help, because the usage text already contains it
	}
	f.BoolVar(&inBackground, "background", false, "the service was started by a client")
	f.Lookup("background").Hidden = true
	addServiceManagerFlag(f, &underServiceManager)
	return cmd
}

// serveOptions returns the options of the service. Its paths are in the directory of the flag --dir or, without --dir,
// the user's default paths.
func (a *app) serveOptions(workerCountText, settingsFile string) (service.Options, error) {
	o := service.Options{Version: cli.Version, FlagSettings: map[string]string{}, LogFile: a.Stderr,
		LogIsTerminal: term.IsTerminal(a.Stderr)}
	var err error
	if a.ServiceDir != "" {
		dir, err := a.AbsServiceDir()
		if err != nil {
			return o, err
		}
		o.Paths = config.PathsInDir(dir)
	} else if o.Paths, err = config.UserPaths(); err != nil {
		return o, err
	} else if err = o.Paths.CheckHomeOwner(); err != nil {
		return o, err
	}
	if a.SocketPath != "" {
		if o.Paths.SocketPath, err = connect.CheckedNewSocketPath("--socket", a.SocketPath); err != nil {
			return o, err
		}
	}
	if settingsFile != "" {
		if err := files.CheckIsFile("--config", settingsFile); err != nil {
			return o, err
		}
		o.Paths.SettingsFile, o.RequireSettingsFile = settingsFile, true
	}
	if workerCountText != "" {
		o.FlagSettings["workers"] = workerCountText
	}
	client, err := connect.ClientPath()
	if err != nil {
		return o, err
	}
	o.RunnerCommand = []string{client, "runner"}
	own, err := os.Executable()
	o.WebhookCommand = []string{own, webhookArg}
	return o, err
}

// serviceManager contains the connection of serve to the service manager that has started this process. To stop the
// service, the service manager cancels the context of serve.
type serviceManager struct {
	service.ServiceManager
	reloadSignals <-chan os.Signal
}

// memoryTrimDelay is the time from the start of the service until its first attempt to return unused memory to the
// operating system.
const memoryTrimDelay = time.Second

// serve runs the service until the service manager m stops it. If m is nil, signals stop it.
func (a *app) serve(ctx context.Context, o service.Options, m *serviceManager) error {
	name := config.LogFileName
	if m != nil {
		name = config.WindowsServiceLogName
	}
	if o.StartedOnDemand || m != nil {
		log, err := logs.OpenServiceLog(filepath.Join(o.Paths.StateDir, name))
		if err != nil {
			return err
		}
		if a.Stderr != os.Stderr {
			// Close standard error, a second descriptor of the log file. Otherwise the process would keep the old
			// log open after a log rotation.
			a.Stderr.Close()
		}
		o.LogFile, a.Stderr = log, log
		// Write crash reports to the log, because the process has no other output.
		if m != nil {
			// Ignore an error, because then only crash reports are missing.
			debug.SetCrashOutput(log, debug.CrashOptions{})
		}
		detachConsole()
	}
	var memoryTrimmer tune.MemoryTrimmer
	o.OnIdleCheck = memoryTrimmer.TrimIfIdle
	o.OnReady = func() {
		fmt.Fprintf(a.Stderr, "queuectl: ready on %s\n", o.Paths.SocketPath)
		memoryTrimmer.BeginIdleCheck()
		time.AfterFunc(memoryTrimDelay, memoryTrimmer.TrimIfIdle)
	}
	if m != nil {
		o.ServiceManager = &m.ServiceManager
		err := service.Run(ctx, o, m.reloadSignals)
		if err != nil {
			fmt.Fprintf(a.Stderr, "queuectl: %s\n", fault.UserMessage(err))
		}
		return err
	}
	ctx, stop := contextUntilStopSignal(ctx, a.Stderr)
	defer stop()
	hup := make(chan os.Signal, 1)
	if len(cli.ReloadSignals) > 0 {
		signal.Notify(hup, cli.ReloadSignals...)
	}
	return service.Run(ctx, o, hup)
}
