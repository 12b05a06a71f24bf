package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/queuectl/queuectl/internal/systemd"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/submissions"
	"github.com/queuectl/queuectl/upkeep"
	"github.com/queuectl/queuectl/worker"
)

// serve runs the parts of the service until it must stop.
func (s *Service) serve(ctx context.Context, reloadSignals <-chan os.Signal) error {
	defer s.traceExporter.Close()
	perms, err := s.socketPerms(&s.Settings.CurrentConfig().Settings)
	if err != nil {
		return s.settingStartError("socket_group", err)
	}
	runners, err := s.RunnerLocation.LockRunnersDir()
	if err != nil {
		return &ExitError{ExitCodeConfig, err}
	}
	if runners != nil {
		defer runners.Close()
	}
	if err := s.prepareForNewStore(ctx); err != nil {
		return err
	}
	s.configureTraceExport()
	if s.DrainState.AllNodesDrained.Load() {
		s.Pool.SetDraining(true)
	}
	if s.PauseOfAllJobs.Load() != nil { // the pool then sends the pause to each runner that connects
		s.Pool.SetAllJobsPaused(true)
	}
	bind := func() error {
		return s.retryWhileDiskFull(ctx, func() error { return s.openControlSocket(perms) })
	}
	if s.options.ServiceManager != nil {
		// Open the socket before the service takes over running jobs, which may take long. A service manager
		// stops a service that takes long to start.
		if err := bind(); err != nil {
			return nilIfCancelled(ctx, err)
		}
		defer s.socket.Close() // this disconnects the clients that are waiting
		s.options.ServiceManager.OnListening()
	}
	if err := s.NodeLeaseKeeper.RenewNodeLease(ctx); err != nil {
		return err
	}
	r := newPartGroup(ctx)
	defer r.stopParts()
	if adopted, err := s.adoptJobs(ctx, r); err != nil || !adopted {
		return err
	}
	if s.socket == nil {
		if err := bind(); err != nil {
			return nilIfCancelled(ctx, err)
		}
	}
	f := newFrontEnd(s)
	defer f.api.CloseWebPage()
	s.startParts(r, f)
	s.options.OnReady()
	return s.waitAndStop(ctx, reloadSignals, r.partFailures, f)
}

// servicePartGroup runs the parts of the service until one of the parts fails or all are stopped.
type servicePartGroup struct {
	ctx          context.Context // ends when the parts must stop
	cancel       context.CancelFunc
	runningParts sync.WaitGroup
	partFailures chan error // the errors of the parts that have failed
}

// maxPartFailures is the capacity of servicePartGroup.partFailures. It is the number of parts that can fail, so that no
// part waits when it reports its error.
const maxPartFailures = 4

// newPartGroup returns a group without parts. The parts continue to run when ctx ends. Only servicePartGroup.stopParts
// stops them.
func newPartGroup(ctx context.Context) *servicePartGroup {
	r := &servicePartGroup{partFailures: make(chan error, maxPartFailures)}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return r
}

// startPart starts a part that can fail. If the part fails, its error is sent to partFailures.
func (r *servicePartGroup) startPart(part func(context.Context) error) {
	r.runningParts.Go(func() {
		if err := part(r.ctx); err != nil {
			r.partFailures <- err
		}
	})
}

// startPartWithoutError starts a part that cannot fail.
func (r *servicePartGroup) startPartWithoutError(part func(context.Context)) {
	r.runningParts.Go(func() { part(r.ctx) })
}

// stopParts stops the parts and waits for their end.
func (r *servicePartGroup) stopParts() {
	r.cancel()
	r.runningParts.Wait()
}

// adoptJobs starts the worker pool, which first takes over (adopts) the jobs that an earlier service left
// running. complete is false if ctx ended before all jobs were taken over, for example because the disk is
// full. The next service then takes over the rest.
func (s *Service) adoptJobs(ctx context.Context, r *servicePartGroup) (complete bool, err error) {
	adopted := make(chan struct{})
	r.startPartWithoutError(s.NodeLeaseKeeper.RunNodeLeaseRenewals)
	r.startPart(s.watchLauncher)
	r.startPart(func(ctx context.Context) error { return s.Pool.Run(ctx, func() { close(adopted) }) })
	select {
	case <-adopted:
		r.startPartWithoutError(s.NodeLeaseKeeper.RunTakeovers)
		return true, nil
	case err := <-r.partFailures:
		return false, s.adoptionError(err)
	case <-ctx.Done():
		return false, nil
	}
}

// startParts starts the parts that answer requests, and those that work without requests.
func (s *Service) startParts(r *servicePartGroup, f *frontEnd) {
	r.startPart(func(ctx context.Context) error { return f.server.Run(ctx, s.socket) })
	r.startPartWithoutError(func(ctx context.Context) { s.socket.RecreateWhenRemoved(ctx, s.Log) })
	if s.StoreMaintainer != nil {
		r.startPartWithoutError(s.StoreMaintainer.WatchFiles)
		r.startPartWithoutError(s.StoreMaintainer.CompactFiles)
	}
	r.startPart(func(ctx context.Context) error { return upkeep.Run(ctx, s.upkeepConfig(f)) })
	r.startPartWithoutError(s.admission.RunFormerOwnerSeparation)
	r.startPartWithoutError(f.api.PauseJobsOfFrozenQueues)
	r.startPartWithoutError(func(ctx context.Context) {
		upkeep.RunUnownedOutputSearch(ctx, s.Store, s.RunnerLocation.OutputDirs,
			cluster.StateDirFirstUsedAt(s.Paths.StateDir),
			s.Log)
	})
	r.startPartWithoutError(s.notifySystemd)
	responder := &cluster.Responder{
		Log: s.Log, NodeName: s.NodeName, JobRouter: s.JobRouter, API: f.api,
		ReloadSharedSettings: f.api.ReloadSharedSettings,
	}
	r.startPartWithoutError(func(ctx context.Context) { submissions.Run(ctx, s.Dependencies, f.server) })
	r.startPartWithoutError(responder.ServeNodeRequests)
	if every := systemd.WatchdogTimeout() / 8; every > 0 {
		r.startPartWithoutError(func(ctx context.Context) { s.notifySystemdWatchdog(ctx, every) })
	}
}

// adoptionError returns a more helpful error if the service could not take over the jobs of an earlier service because
// the database was restored from a backup. A runner that has already seen a newer state of the queue then rejects the
// service. All other errors are returned unchanged.
func (s *Service) adoptionError(err error) error {
	if !errors.Is(err, runner.ErrRunnerSawNewerDatabase) && !errors.Is(err, worker.ErrStoreOlderThanRunner) {
		return err
	}
	return &ExitError{ExitCodeConfig, fmt.Errorf("the database in %s is outdated: %w; restore a newer backup: "+
		"queuectl --dir %s restore FILE; or, to keep this database, end the runner and its jobs%s", s.Paths.StateDir,
		err, queue.QuoteShellWord(s.Paths.StateDir), s.endRunnersHint())}
}

// endRunnersHint returns the last part of an error message. It says how a user can end all runners.
func (s *Service) endRunnersHint() string {
	who, where := "", ""
	if s.RunnerLocation.HasExternalRunnersDir() {
		who = ", as root"
		if s.RunnerLocation.RunnersDir != rootRunnersDir(s.Paths) {
			where = " --runner-dir " + s.RunnerLocation.RunnersDir
		}
	}
	return fmt.Sprintf("%s: queuectl --dir %s service stop --runners%s", who,
		queue.QuoteShellWord(s.Paths.StateDir), where)
}

// purgeOutputs deletes output files. If only root can delete some of the files, it asks the runners that run as root.
// It reports whether all files were deleted.
func (s *Service) purgeOutputs(ctx context.Context, outputRefs []string) bool {
	runner.RemoveOutputs(cluster.RunnersDir(s.Paths), outputRefs)
	return !s.RunnerLocation.HasExternalRunnersDir() || s.Pool.PurgeOutputs(ctx, outputRefs)
}

// maxStoredEvents is the maximum number of stored events.
const maxStoredEvents = 1_000_000

// upkeepConfig returns the work that package upkeep does for this service.
func (s *Service) upkeepConfig(f *frontEnd) upkeep.Config {
	return upkeep.Config{
		Store: s.Store, CurrentRetention: s.upkeepRetention, PurgeOutputs: s.purgeOutputs,
		RecurringJobConfig: f.api.RecurringJobConfig(),
		SettingsChanged:    f.api.SettingsChangedSignal(), OnIdleCheck: s.options.OnIdleCheck, Log: s.Log,
	}
}

// upkeepRetention returns how long upkeep keeps jobs and events.
func (s *Service) upkeepRetention() upkeep.Retention {
	c := s.Settings.CurrentConfig()
	return upkeep.Retention{
		MaxAgeByState: map[queue.State]time.Duration{queue.Completed: c.RetentionCompleted,
			queue.Cancelled: c.RetentionCancelled, queue.Dead: c.RetentionDead},
		MaxCompletedOrCancelledJobs: c.RetentionMaxJobs, MaxEventAge: c.RetentionEvents, MaxEvents: maxStoredEvents,
		MaxOutputBytes:   c.RetentionOutputBytes,
		MaxBytesPerUser:  s.UserQuota.NearQuotaThresholdBytes(),
		RetentionOfQueue: s.QueueRules.Retention,
	}
}

// watchLauncher waits for the end of ctx or of the launcher, the process that starts runners as root. It
// returns nil if ctx has ended. If the launcher has ended, it returns an error that ends the service: the
// service is no longer root and cannot start another launcher, so a user must start it again as root.
func (s *Service) watchLauncher(ctx context.Context) error {
	select {
	case err := <-s.launcher.ExitError:
		return launcherEndedError(err)
	case <-ctx.Done():
		return nil
	}
}

// launcherEndedError returns the error with which the service ends because its launcher has ended.
func launcherEndedError(err error) error {
	return fmt.Errorf("%w, so the service ends too; start the service again as root (running jobs continue)", err)
}

// configureTraceExport makes the exporter send traces of attempts to the collector that the settings name. If this
// fails, failureText is a message for the user; otherwise it is "".
func (s *Service) configureTraceExport() (failureText string) {
	if err := s.traceExporter.SetEndpoint(s.Settings.CurrentConfig().TracesEndpoint); err != nil {
		s.Log.Error("the service sends no traces; correct the setting traces.endpoint", "error", err)
		return "the service sends no traces; correct the setting traces.endpoint: " + err.Error()
	}
	return ""
}
