package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/config/tomlfile"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/connect"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/osservice"
	"github.com/queuectl/queuectl/internal/osservice/install"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service"
)

func serviceVerb(a *app) *cobra.Command {
	var ownService, keepJobs, stopsRunners bool
	var runnerDir string
	verb := func(name, short string, run func(ctx context.Context) error) *cobra.Command {
		cmd := &cobra.Command{
			Use: name, Short: short, Args: cli.ExactArgs(0, "no arguments"),
			RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context()) },
		}
		cmd.Flags().BoolVar(&ownService, "user", false, "act on your own service, not on the machine's service")
		return cmd
	}
	stop := verb("stop", "Stop the service and its jobs", func(ctx context.Context) error {
		switch {
		case stopsRunners && keepJobs:
			return fault.Usagef("--runners: ends all jobs, so it cannot be combined with --keep-jobs; use one of them")
		case stopsRunners:
			return a.stopLeftoverRunners(runnerDir)
		case runnerDir != "":
			return fault.Usagef("--runner-dir: works only with --runners; use both")
		}
		return a.stopService(ctx, ownService, keepJobs)
	})
	stop.Flags().BoolVar(&keepJobs, "keep-jobs", false,
		"let running jobs continue; the service takes them over when it starts again")
	stop.Flags().BoolVar(&stopsRunners, "runners", false,
		"stop the runners that a service has left behind, and their jobs; the service must not be running")
	stop.Flags().Var(input.NonEmptyValue(&runnerDir), "runner-dir",
		"with --runners: the `DIR` that was given to queuectl serve as --runner-dir, if any")
	verbs := cli.GroupCommand("service", "Install, start, stop and check the service",
		verb("install", "Install the service and start it",
			func(context.Context) error { return a.installService(ownService) }),
		verb("uninstall", "Stop the service and uninstall it",
			func(context.Context) error { return a.uninstallService(ownService) }),
		verb("start", "Start the service in the background", func(ctx context.Context) error {
			return a.startOrRestartService(ctx, ownService, "started", a.startWithoutServiceManager, (*install.Service).Start)
		}),
		stop,
		verb("restart", "Restart the service; running jobs continue",
			func(ctx context.Context) error { return a.restartService(ctx, ownService) }),
		verb("status", "Show whether the service is running",
			func(ctx context.Context) error { return a.printServiceStatus(ctx, ownService) }),
	)
	verbs.AddCommand(a.installerVerbs()...)
	return verbs
}

// restartService restarts a service. The service need not be registered with the service manager.
func (a *app) restartService(ctx context.Context, useUserService bool) error {
	return a.startOrRestartService(ctx, useUserService, "restarted", a.restartWithoutServiceManager,
		func(r *install.Service) error {
			c := control.NewClient(r.ServicePaths.SocketPath)
			defer c.Close()
			// Before a running service is stopped, check that it could start again. If no service answers, skip the
			// check: a failed start then makes nothing worse.
			if c.Connect(ctx) == nil {
				if err := checkServiceCanRestart(ctx, c, r.ServicePaths.SettingsFile, nil); err != nil {
					return err
				}
			}
			return r.Restart()
		})
}

// restartWithoutServiceManager restarts a service without a service manager, in the background. If the service does not
// run, restartWithoutServiceManager starts it.
func (a *app) restartWithoutServiceManager(ctx context.Context, t connect.Target) error {
	c := control.NewClient(t.SocketPath)
	defer c.Close()
	var err error
	if c.Connect(ctx) == nil {
		if t.ServeFlags, err = serveArgsForRestart(ctx, c, t.ServeFlags); err != nil {
			return err
		}
		if _, err := a.stopServiceAndWait(ctx, c, true); err != nil {
			return err
		}
	}
	return a.startWithoutServiceManager(ctx, t)
}

// userOrSystemService returns the user's own service if useUserService is true, else the system's service. The service
// need not be registered with a service manager.
func (a *app) userOrSystemService(useUserService bool) (*install.Service, error) {
	o := install.Options{IsUserService: useUserService, ServicePaths: config.SystemPaths()}
	var err error
	if useUserService {
		if o.ServicePaths, err = config.UserPaths(); err != nil {
			return nil, err
		}
	}
	if a.ServiceDir != "" || a.SocketPath != "" {
		return nil, fault.Usagef("a registered service has fixed paths; leave out --dir and --socket")
	}
	if o.DaemonPath, err = connect.DaemonPath(); err != nil {
		return nil, err
	}
	if o.ClientPath, err = connect.ClientPath(); err != nil {
		return nil, err
	}
	o.DirectControl = a.directServiceControl(o.ServicePaths)
	return install.New(o)
}

// directServiceControl returns functions that start, stop and query the service that uses the given paths. The
// functions use the socket and the process of the service, not a service manager.
func (a *app) directServiceControl(paths config.Paths) install.DirectControl {
	ctx := context.Background()
	return install.DirectControl{
		Start: func() error {
			_, err := a.startServiceIfStopped(ctx, connect.Target{SocketPath: paths.SocketPath, IsUserService: true})
			return err
		},
		Stop: func(keepJobs bool) error {
			c := control.NewClient(paths.SocketPath)
			defer c.Close()
			_, err := a.stopServiceAndWait(ctx, c, keepJobs)
			return err
		},
		IsAnswering: func() bool {
			c := control.NewClient(paths.SocketPath)
			defer c.Close()
			return c.Connect(ctx) == nil
		},
	}
}

// registeredService returns the service that a command acts on, if that service is registered with the service
// manager. Otherwise it returns nil, and the command uses the service's socket instead. With --user, a missing
// registration is an error.
func (a *app) registeredService(useUserService bool) (*install.Service, error) {
	if useUserService {
		r, err := a.userOrSystemService(true)
		if err == nil && !r.IsRegistered() {
			err = r.NotRegisteredError()
		}
		return r, err
	}
	t, err := a.ChooseTarget()
	if err != nil || !t.IsUserService && t.SocketPath != config.SystemPaths().SocketPath {
		return nil, err
	}
	r, err := a.userOrSystemService(t.IsUserService)
	if err != nil || !r.IsRegistered() {
		return nil, nil // ignore the error: on a system without a supported service manager, no service is registered
	}
	return r, nil
}

// installService registers the service with the service manager. If the user's own service runs in the
// background, installService first stops it, and the registered service takes over its jobs.
func (a *app) installService(useUserService bool) error {
	if useUserService {
		p, err := config.UserPaths()
		if err = cmp.Or(err, p.CheckHomeOwner()); err != nil {
			return err
		}
	}
	r, err := a.userOrSystemService(useUserService)
	if err != nil {
		return err
	}
	if useUserService && !r.IsRegistered() && r.DirectControl.IsAnswering() {
		if err := r.DirectControl.Stop(true); err != nil {
			return err
		}
	}
	if err := r.Install(); err != nil {
		return err
	}
	if a.WantsJSON() {
		return a.PrintJSON(map[string]any{"registered": true, "socket": r.ServicePaths.SocketPath})
	}
	a.PrintTerminalMessage("the service is registered and running; its socket is %s", r.ServicePaths.SocketPath)
	if useUserService && osservice.UserServiceEndsAtLogout() {
		a.PrintTerminalMessage("the service stops when you log out; %s", connect.KeepServiceRunningAdvice)
	}
	return nil
}

// uninstallService implements `queuectl service uninstall`.
func (a *app) uninstallService(useUserService bool) error {
	r, err := a.userOrSystemService(useUserService)
	if err != nil {
		return err
	}
	wasRegistered, err := r.Uninstall()
	switch {
	case err != nil:
		return err
	case a.WantsJSON():
		return a.PrintJSON(map[string]any{"registered": r.IsRegistered(), "was": wasRegistered})
	case r.IsRegistered():
		a.PrintTerminalMessage("from now on, the service from the installed package is used; you can delete the programs " +
			"that you " +
			"installed before the package, usually in /usr/local/bin")
	case wasRegistered:
		a.PrintTerminalMessage("the service is no longer registered; the queue is kept in %s", r.ServicePaths.StateDir)
	default:
		a.PrintTerminalMessage("no service was registered")
	}
	return nil
}

// checkServiceCanRestart returns an error if a running service could not start again with its settings file and the
// given environment. It also makes the running service reload and thereby validate the file. If the caller may not read
// the file or may not reload the service, checkServiceCanRestart skips that part of the check.
func checkServiceCanRestart(ctx context.Context, c *control.Client, settingsPath string, environment []string) error {
	file, err := tomlfile.Read(settingsPath, false)
	if errors.Is(err, fs.ErrPermission) {
		file, err = config.Layer{Origin: config.FromFile}, nil
	}
	var env config.Layer
	if err == nil {
		env, err = config.ReadEnv(environment)
	}
	if err == nil {
		_, err = config.Merge(file, env)
	}
	if err == nil {
		if _, err = c.ReloadSettingsFile(ctx, control.NoParams{}); !errors.Is(err, queue.ErrInvalid) {
			return nil
		}
	}
	return queue.Errorf(queue.CodeInvalid, "the service was not restarted: it could not start with these settings (%v); "+
		"fix them, and check the file with: queuectl config validate %s", err, settingsPath)
}

// serveArgsForRestart returns the command-line arguments with which a running service starts again with the same
// settings file and, if its number of workers was set with a flag, the same number of workers.
func serveArgsForRestart(ctx context.Context, c *control.Client, serveArgs []string) ([]string, error) {
	st, err := c.Status(ctx, control.NoParams{})
	if err == nil {
		err = checkServiceCanRestart(ctx, c, st.SettingsFile, os.Environ())
	}
	if err != nil {
		return nil, err
	}
	serveArgs = slices.Clone(serveArgs)
	// If the settings file does not exist, leave out its path. The service then uses the default path.
	if _, err := os.Stat(st.SettingsFile); err == nil {
		serveArgs = append(serveArgs, "--config", st.SettingsFile)
	}
	v, err := c.ReadSetting(ctx, control.SettingNameParams{SettingName: "workers"})
	if err == nil && v.Origin == string(config.FromFlag) {
		serveArgs = append(serveArgs, "--workers", v.Value)
	}
	return serveArgs, nil
}

// startWithoutServiceManager starts a service in the background, without a service manager, unless the service already
// runs.
func (a *app) startWithoutServiceManager(ctx context.Context, t connect.Target) error {
	started, err := a.startServiceIfStopped(ctx, t)
	if err != nil {
		return err
	}
	text := "the service is already running"
	if started {
		text = "service started"
	}
	return a.PrintResult(map[string]any{"started": started}, "%s", text)
}

// startServiceIfStopped starts a service in the background and waits until it answers, unless the service already
// runs.
func (a *app) startServiceIfStopped(ctx context.Context, t connect.Target) (started bool, err error) {
	c := control.NewClient(t.SocketPath)
	defer c.Close()
	err = c.Connect(ctx)
	if errors.Is(err, control.ErrUnreachable) && !errors.Is(err, os.ErrPermission) {
		return true, a.StartServiceAndWait(ctx, c, t)
	}
	return false, err
}

// startOrRestartService calls onRegistered with the service that is registered with a service manager. If none is, and
// the client's target is a service that can start in the background, it calls onUnregistered with this target.
// Otherwise it calls onRegistered with the system's service. pastParticiple is "started" or "restarted", for the
// printed message.
func (a *app) startOrRestartService(ctx context.Context, useUserService bool, pastParticiple string,
	onUnregistered func(context.Context, connect.Target) error, onRegistered func(*install.Service) error) error {
	r, err := a.registeredService(useUserService)
	if r == nil && err == nil {
		if t, err := a.ChooseTarget(); err == nil && t.CanStart() {
			return onUnregistered(ctx, t)
		}
		r, err = a.userOrSystemService(false)
	}
	if err != nil {
		return err
	}
	if err := onRegistered(r); err != nil {
		return err
	}
	return a.PrintResult(map[string]any{pastParticiple: true}, "service %s", pastParticiple)
}

// stopService implements `queuectl service stop`.
func (a *app) stopService(ctx context.Context, useUserService, keepJobsRunning bool) error {
	r, err := a.registeredService(useUserService)
	switch {
	case err != nil:
		return err
	case r == nil:
		return a.stopServiceThroughSocket(ctx, keepJobsRunning)
	}
	running := r.IsRunning()
	if running {
		defer a.warnIfStopIsSlow(ctx, r.ServicePaths.SocketPath, keepJobsRunning)()
	}
	if err := r.Stop(keepJobsRunning); err != nil {
		return err
	}
	if running && !keepJobsRunning {
		if err := awaitRunnersEnd(ctx, r.ServicePaths, ""); err != nil {
			return err
		}
	}
	return a.PrintResult(map[string]any{"stopped": running}, "service stopped")
}

// stopLeftoverRunners stops the runners that continue to run although their service has ended.
func (a *app) stopLeftoverRunners(runnerDir string) error {
	places, err := a.ServicePaths()
	if err != nil {
		return err
	}
	slow := time.AfterFunc(2*time.Second, func() {
		a.PrintTerminalMessage("waiting up to %v for the runners and their jobs to end; then they are killed",
			service.EndRunnersTimeout())
	})
	n, err := service.EndRunners(places, runnerDir)
	slow.Stop()
	if err != nil {
		return err
	}
	return a.PrintResult(map[string]any{"ended": n}, "runners ended: %d", n)
}

// printServiceStatus prints whether the service runs. For a registered service, printServiceStatus first asks the
// service manager, because the service manager may start a stopped service when a client connects to its socket.
func (a *app) printServiceStatus(ctx context.Context, useUserService bool) error {
	r, err := a.registeredService(useUserService)
	var c *control.Client
	switch {
	case err != nil:
	case r == nil:
		c, err = a.Client()
	case !r.IsRunning():
		err = queue.Errorf(queue.CodeUnavailable, "the service is registered but not running; start it with: %s",
			r.StartCommand())
	default:
		c = control.NewClient(r.ServicePaths.SocketPath)
		err = connect.Target{SocketPath: r.ServicePaths.SocketPath,
			StartCommand: r.StartCommand()}.ExplainConnectError(c.Connect(ctx))
	}
	if err != nil {
		return err
	}
	defer c.Close()
	st, err := c.Status(ctx, control.NoParams{})
	if err != nil {
		return err
	}
	if a.WantsJSON() {
		return a.PrintJSON(map[string]any{"running": true, "registered": r != nil, "pid": st.PID, "version": st.Version,
			"started_at": st.StartedAt, "service": st.ServiceKind, "socket": st.SocketPath})
	}
	return a.Println("running, pid " + strconv.Itoa(st.PID) + ", version " + st.Version + "\nService: " +
		present.DescribeService(st.ServiceKind, st.SocketPath))
}

// stopServiceThroughSocket stops the service through its socket.
func (a *app) stopServiceThroughSocket(ctx context.Context, keepJobsRunning bool) error {
	t, err := a.ChooseTarget()
	if err != nil {
		return err
	}
	c := control.NewClient(t.SocketPath)
	defer c.Close()
	err = c.Connect(ctx)
	if errors.Is(err, control.ErrUnreachable) && !errors.Is(err, os.ErrPermission) {
		return a.PrintResult(map[string]any{"stopped": false}, "no service is running")
	}
	if err := t.ExplainConnectError(err); err != nil {
		return err
	}
	stopped := a.warnIfStopIsSlow(ctx, t.SocketPath, keepJobsRunning)
	got, err := a.stopServiceAndWait(ctx, c, keepJobsRunning)
	stopped()
	if err != nil {
		return err
	}
	return a.PrintResult(got, "service with pid %d stopped", got.ServicePID)
}

// slowStopWarningDelay is the time after which warnIfStopIsSlow prints a message during a stop.
const slowStopWarningDelay = time.Second

// warnIfStopIsSlow prints a message if a stop of the service takes longer than slowStopWarningDelay. If standard error
// is a terminal, the message says how many jobs the service waits for. warnIfStopIsSlow queries this number before the
// stop, because a later connection could start the service again through its socket unit. The caller calls
// cancel when the service has stopped.
func (a *app) warnIfStopIsSlow(ctx context.Context, socketPath string, keepJobsRunning bool) (cancel func() bool) {
	text := "waiting for the service to stop"
	if term.IsTerminal(a.Stderr) && !a.Quiet && !keepJobsRunning {
		statusCtx, cancel := context.WithTimeout(ctx, slowStopWarningDelay)
		defer cancel()
		c := control.NewClient(socketPath)
		defer c.Close()
		if st, err := c.Status(statusCtx, control.NoParams{}); err == nil && st.Workers.Busy > 0 {
			text = "waiting for " + present.JobCountText(st.Workers.Busy) +
				" to finish; jobs that still run after the time in stop_timeout go back to the queue"
		}
	}
	return time.AfterFunc(slowStopWarningDelay, func() { a.PrintTerminalMessage("%s", text) }).Stop
}

// stopServiceAndWait stops a service and waits until it has released the lock of its state directory, so that another
// service can start. Unless keepJobsRunning is true, stopServiceAndWait also waits for the service's runners. It
// returns an error if the runners do not end.
func (a *app) stopServiceAndWait(ctx context.Context, c *control.Client,
	keepJobsRunning bool) (control.ServiceStopResult, error) {
	got, err := c.StopService(ctx, control.ServiceStopParams{KeepJobs: keepJobsRunning})
	if err != nil {
		return got, err
	}
	for service.IsStateDirInUse(got.StateDir) {
		if err := sleepBetweenPolls(ctx); err != nil {
			return got, err
		}
	}
	if keepJobsRunning {
		return got, nil
	}
	return got, awaitRunnersEnd(ctx, config.PathsInDir(got.StateDir), got.RunnerDir)
}

// sleepBetweenPolls waits a few milliseconds before the caller checks again whether the service has stopped.
func sleepBetweenPolls(ctx context.Context) error {
	select {
	case <-time.After(5 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return queue.Errorf(queue.CodeUnavailable, "interrupted while waiting for the service to stop; the service "+
			"may still be stopping")
	}
}

// runnersEndTimeout is how long awaitRunnersEnd waits. This is more than enough: after a normal stop of the service,
// its runners end within milliseconds.
const runnersEndTimeout = 5 * time.Second

// awaitRunnersEnd waits until the runners of a stopped service have ended. It returns an error if they are
// still alive after runnersEndTimeout, for example because the service crashed while it stopped them.
func awaitRunnersEnd(ctx context.Context, paths config.Paths, runnerDir string) error {
	for end := time.Now().Add(runnersEndTimeout); service.HasLivingRunners(paths, runnerDir); {
		if time.Now().After(end) {
			command := "queuectl --dir " + queue.QuoteShellWord(paths.StateDir) + " service stop --runners"
			if runnerDir != "" {
				command += " --runner-dir " + queue.QuoteShellWord(runnerDir)
			}
			return queue.Errorf(queue.CodeWrongState, "the service ended, but its runners are still alive, so jobs may still "+
				"be running; stop them with: %s", command)
		}
		if err := sleepBetweenPolls(ctx); err != nil {
			return err
		}
	}
	return nil
}
