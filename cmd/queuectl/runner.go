package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/logs"
	"github.com/queuectl/queuectl/internal/systemd"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/daemon"
	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/runner/process"
)

// runnerFlags holds the flags of the command `queuectl runner`.
type runnerFlags struct {
	isIsolated, readRequestFromStdin, cgroupDelegated, stopAllRunners, isWatchdog bool
	policyFile, serviceUnit, launcherAccount, logFile, tmpdir                     string
}

// runnerVerb returns the command `queuectl runner`, which the service starts as a separate process. Users do
// not call it.
func runnerVerb(a *cli.App) *cobra.Command {
	var r runnerFlags
	cmd := &cobra.Command{
		Use: "runner", Short: "Run jobs for the service (internal command)", Hidden: true,
		Args: cli.ExactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := logs.NewRunnerLogger(a.Stderr)
			switch {
			case r.stopAllRunners:
				return stopRootRunners(r.serviceUnit)
			case a.ServiceDir == "":
				return fault.Usagef("runner: only the service starts this command; start the service with: queuectl serve")
			case r.launcherAccount != "":
				return runLauncher(cmd.Context(), a.ServiceDir, r.launcherAccount, r.policyFile, log)
			case r.isWatchdog:
				// Ignore signals. The watchdog must outlive its runner to kill the jobs, and it exits after the
				// runner has ended.
				signal.Notify(make(chan os.Signal, 1), append(cli.StopSignals, cli.ReloadSignals...)...)
				return launcher.RunWatchdog(a.ServiceDir)
			}
			return r.runRunner(cmd.Context(), a, log)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&r.isIsolated, "alone", false, "run a single job, then exit")
	f.BoolVar(&r.readRequestFromStdin, "accepted", false,
		"read one request of the service from standard input, a socket, and start the runner that it asks for")
	f.BoolVar(&r.cgroupDelegated, "delegated", false,
		"create control groups for jobs below the control group of this process")
	f.StringVar(&r.policyFile, "policy", config.RootRunnerPolicyFile,
		"run only jobs of accounts that the policy `FILE` allows; with --policy '', run only jobs of this account")
	f.StringVar(&r.serviceUnit, "unit", "", "exit once systemd has stopped the service `UNIT`")
	f.StringVar(&r.launcherAccount, "launcher", "", "start a runner for each connection from the service; "+
		"`UID:GID` is the account of the service")
	f.StringVar(&r.tmpdir, "job-tmpdir", "", "directory for the temporary directories of jobs (setting job_tmpdir)")
	f.StringVar(&r.logFile, "log", "", "reopen the log `FILE` on SIGHUP")
	f.BoolVar(&r.isWatchdog, "watchdog", false, "watch the runner in the directory given with --dir: kill programs that "+
		"hang while they start, and jobs that outlive the runner")
	f.BoolVar(&r.stopAllRunners, "stop", false, "stop all runners if systemd is stopping the service given with --unit")
	return cmd
}

// runRunner prepares this process to be a runner, and executes jobs until the runner is stopped.
func (r *runnerFlags) runRunner(ctx context.Context, a *cli.App, log *slog.Logger) error {
	if err := process.PrepareToRunCommands(); err != nil {
		return err
	}
	// Do not end on Ctrl-C in a terminal or on SIGHUP. On Linux, SIGHUP makes reopenLogOnSIGHUP reopen the log.
	signal.Notify(make(chan os.Signal, 1), append([]os.Signal{os.Interrupt}, cli.ReloadSignals...)...)
	go reopenLogOnSIGHUP(a.Stderr, r.logFile) // this goroutine ends with this process
	ctx, end := contextUntilStopSignal(ctx, log)
	defer end()
	own := launcher.RunnerSettings{RunnersDir: a.ServiceDir, JobTmpdir: r.tmpdir, ServesOneIsolatedJob: r.isIsolated,
		ServiceUID: os.Geteuid()}
	o := daemon.Options{RunnerSettings: own, OnReady: runner.ReportReady}
	// refuse reports to the service that this runner could not start. If the service started the runner itself, instead of
	// requesting it from the launcher or systemd, refuse does nothing.
	refuse := func(error) {}
	if r.readRequestFromStdin {
		grant, err := launcher.HandleSpawnRequest(a.ServiceDir, r.policyFile, r.serviceUnit != "")
		if err != nil {
			return err
		}
		if grant.KilledOtherRunner {
			return nil
		}
		refuse = grant.ReplyError
		warnCgroupsUnavailable(log, grant.NoCgroupsReason)
		o = daemon.Options{RunnerSettings: grant.RunnerSettings, OnReady: grant.ReplyReady}
	}
	if r.cgroupDelegated {
		var err error
		o.Cgroups, err = process.NewCgroups()
		warnCgroupsUnavailable(log, err)
	}
	self, err := os.Executable()
	if err == nil {
		err = process.CheckAddressSpaceLimit()
	}
	if err == nil {
		o.Version, o.Log, o.WatchdogCommand = cli.Version, log, []string{self, "runner", "--watchdog"}
		if r.serviceUnit != "" {
			o.IsServiceStopped, o.ExtendStopTimeout = systemd.Unit(r.serviceUnit).IsInactive, systemd.ExtendStopTimeout
		}
		err = daemon.Serve(ctx, o)
	}
	if err != nil {
		refuse(err)
	}
	return err
}

// warnCgroupsUnavailable logs why control groups cannot be used. It does nothing if cause is nil.
func warnCgroupsUnavailable(log *slog.Logger, cause error) {
	if cause != nil {
		log.Warn("control groups are not fully available; jobs run, but some of their limits (memory, cpus, tasks) "+
			"may not be enforced", "error", cause)
	}
}

// systemdStopQueryTimeout bounds how long stopRootRunners waits for the answer of systemd to the question whether the
// service is being stopped.
const systemdStopQueryTimeout = 10 * time.Second

// runnersStopTimeout bounds how long stopRootRunners waits until the runners have ended.
const runnersStopTimeout = 80 * time.Second

// stopRootRunners stops the runners that run as root. systemd calls `queuectl runner --stop` each time the service has
// ended, even after a crash. If systemd is going to restart the service, stopRootRunners lets the runners and their
// jobs continue.
func stopRootRunners(serviceUnit string) error {
	if serviceUnit == "" {
		return fault.Usagef("runner --stop: needs the systemd unit of the service; add --unit UNIT")
	}
	if systemd.Unit(serviceUnit).IsStopping(systemdStopQueryTimeout) {
		systemd.StopUnits("queuectl-runner@*.service", runnersStopTimeout)
	}
	return nil
}

// runLauncher starts runners as root on a machine without systemd, until ctx ends. serviceAccount has the form
// UID:GID.
func runLauncher(ctx context.Context, runnerDir, serviceAccount, policyFile string, log *slog.Logger) error {
	uid, gid, _ := strings.Cut(serviceAccount, ":")
	u, err1 := strconv.Atoi(uid)
	g, err2 := strconv.Atoi(gid)
	if err1 != nil || err2 != nil {
		return fault.Usagef("--launcher: %q is not UID:GID; write it like 999:999", serviceAccount)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// Ignore signals. The launcher exits by itself when its service has ended.
	signal.Notify(make(chan os.Signal, 1), append(cli.StopSignals, cli.ReloadSignals...)...)
	return launcher.RunLauncher(ctx, []string{self, "runner"}, runnerDir, policyFile, u, g, log)
}
