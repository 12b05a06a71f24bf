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
	defer s.traces.Close()
	perms, err := s.socketPerms(&s.Settings.Current().Settings)
	if err != nil {
		return s.settingStartError("socket_group", err)
	}
	runners, err := s.RunnerLocation.LockRunners()
	if err != nil {
		return &ExitError{ExitConfig, err}
	}
	if runners != nil {
		defer runners.Close()
	}
	if err := s.prepareStoreChange(ctx); err != nil {
		return err
	}
	s.setTraces()
	if s.DrainState.AllDrained.Load() {
		s.Pool.SetDraining(true)
	}
	if s.Pauses.Load() != nil { // the pool then reports the pause to each runner that connects
		s.Pool.SetAllPaused(true)
	}
	bind := func() error {
		return s.retryWhileFull(ctx, func() error { return s.openSocket(perms) })
	}
	if s.options.Manager != nil {
		// Open the socket before the service takes over running jobs, which may take long. A service manager
		// stops a service that takes long to start.
		if err := bind(); err != nil {
			return nilIfCancelled(ctx, err)
		}
		defer s.socket.Close() // this disconnects the clients that are waiting
		s.options.Manager.OnListening()
	}
	if err := s.LeaseKeeper.RenewLease(ctx); err != nil {
		return err
	}
	r := newPartGroup(ctx)
	defer r.stop()
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
	s.runParts(r, f)
	s.options.OnReady()
	return s.waitAndStop(ctx, reloadSignals, r.failures, f)
}

// partGroup runs the parts of the service until one of them fails or all are stopped.
type partGroup struct {
	ctx      context.Context // ends when the parts must stop
	cancel   context.CancelFunc
	parts    sync.WaitGroup
	failures chan error // the errors of the parts that have failed
}

// maxFailures is the number of parts that can fail. It is the capacity of partGroup.failures, so that no part
// waits when it reports its error.
const maxFailures = 4

// newPartGroup returns a group without parts. The parts continue when ctx ends; only partGroup.stop stops
// them.
func newPartGroup(ctx context.Context) *partGroup {
	r := &partGroup{failures: make(chan error, maxFailures)}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return r
}

// run starts a part that can fail. If it fails, its error is sent to failures.
func (r *partGroup) run(part func(context.Context) error) {
	r.parts.Go(func() {
		if err := part(r.ctx); err != nil {
			r.failures <- err
		}
	})
}

// runWithoutError starts a part that cannot fail.
func (r *partGroup) runWithoutError(part func(context.Context)) { r.parts.Go(func() { part(r.ctx) }) }

// stop stops the parts and waits for their end.
func (r *partGroup) stop() {
	r.cancel()
	r.parts.Wait()
}

// adoptJobs starts the worker pool, which first takes over (adopts) the jobs that an earlier service left
// running. complete is false if ctx ended before all jobs were taken over, for example because the disk is
// full. The next service then takes over the rest.
func (s *Service) adoptJobs(ctx context.Context, r *partGroup) (complete bool, err error) {
	adopted := make(chan struct{})
	r.runWithoutError(s.LeaseKeeper.RunRenewals)
	r.run(s.watchLauncher)
	r.run(func(ctx context.Context) error { return s.Pool.Run(ctx, func() { close(adopted) }) })
	select {
	case <-adopted:
		r.runWithoutError(s.LeaseKeeper.RunTakeovers)
		return true, nil
	case err := <-r.failures:
		return false, s.adoptionError(err)
	case <-ctx.Done():
		return false, nil
	}
}

// runParts starts the parts that answer requests, and those that work without requests.
func (s *Service) runParts(r *partGroup, f *frontEnd) {
	r.run(func(ctx context.Context) error { return f.server.Run(ctx, s.socket) })
	r.runWithoutError(func(ctx context.Context) { s.socket.WatchFile(ctx, s.Log) })
	if s.Maintainer != nil {
		r.runWithoutError(s.Maintainer.WatchFiles)
		r.runWithoutError(s.Maintainer.Compact)
	}
	r.run(func(ctx context.Context) error { return upkeep.Run(ctx, s.upkeepDuties(f)) })
	r.runWithoutError(s.admission.SeparateOwners)
	r.runWithoutError(f.api.PauseJobsOfFrozenQueues)
	r.runWithoutError(func(ctx context.Context) {
		upkeep.RunUnownedSearch(ctx, s.Store, s.RunnerLocation.OutputDirs, cluster.DirFirstUsedAt(s.options.Paths.StateDir),
			s.Log)
	})
	r.runWithoutError(s.notifySystemd)
	responder := &cluster.Responder{
		Log: s.Log, Node: s.Node, Router: s.Router, API: f.api, ReloadShared: f.api.ReloadShared,
	}
	r.runWithoutError(func(ctx context.Context) { submissions.Run(ctx, s.Dependencies, f.server) })
	r.runWithoutError(responder.ServeCluster)
	if every := systemd.WatchdogTimeout() / 8; every > 0 {
		r.runWithoutError(func(ctx context.Context) { s.feedWatchdog(ctx, every) })
	}
}

// adoptionError returns a more helpful error if the service could not take over the jobs of an earlier
// service. This happens if the database was restored from a backup: a runner that has already seen a newer
// state of the queue rejects the service.
func (s *Service) adoptionError(err error) error {
	if !errors.Is(err, runner.ErrNewerDatabase) && !errors.Is(err, worker.ErrStoreOlder) {
		return err
	}
	return &ExitError{ExitConfig, fmt.Errorf("the database in %s is outdated: %w; restore a newer backup: "+
		"queuectl --dir %s restore FILE; or, to keep this database, end the runner and its jobs%s", s.options.Paths.StateDir,
		err, queue.QuoteShellWord(s.options.Paths.StateDir), s.endRunnersHint())}
}

// endRunnersHint returns the end of an error message. It says how a user can end all runners.
func (s *Service) endRunnersHint() string {
	who, where := "", ""
	if s.RunnerLocation.IsExternal() {
		who = ", as root"
		if s.RunnerLocation.Dir != rootRunnersDir(s.options.Paths) {
			where = " --runner-dir " + s.RunnerLocation.Dir
		}
	}
	return fmt.Sprintf("%s: queuectl --dir %s service stop --runners%s", who,
		queue.QuoteShellWord(s.options.Paths.StateDir), where)
}

// purgeOutputs deletes output files. If only root can delete some of them, it asks the runners that run as
// root. It reports whether all files were deleted.
func (s *Service) purgeOutputs(ctx context.Context, refs []string) bool {
	runner.RemoveOutputs(cluster.RunnersDir(s.options.Paths), refs)
	return !s.RunnerLocation.IsExternal() || s.Pool.PurgeOutputs(ctx, refs)
}

// maxStoredEvents is the maximum number of stored events.
const maxStoredEvents = 1_000_000

// upkeepDuties returns the work that package upkeep does for this service.
func (s *Service) upkeepDuties(f *frontEnd) upkeep.Duties {
	return upkeep.Duties{
		Timers:   s.Store,
		Retainer: s.Store, Retention: s.upkeepRetention,
		DeletableOutputs: s.Store, PurgeOutputs: s.purgeOutputs,
		Schedules: s.Store, RecurringJobs: f.api.RecurringJobs(),
		Wake: f.api.ChangeSignal(), OnIdleCheck: s.options.OnIdleCheck, Log: s.Log,
	}
}

// upkeepRetention returns how long upkeep keeps jobs and events.
func (s *Service) upkeepRetention() upkeep.Retention {
	c := s.Settings.Current()
	return upkeep.Retention{
		AgeByState: map[queue.State]time.Duration{queue.Completed: c.RetentionCompleted,
			queue.Cancelled: c.RetentionCancelled, queue.Dead: c.RetentionDead},
		MaxJobs: c.RetentionMaxJobs, EventAge: c.RetentionEvents, MaxEvents: maxStoredEvents,
		MaxOutputBytes:  c.RetentionOutputBytes,
		MaxBytesPerUser: s.Quota.NearQuotaBytes(),
		QueueRetention:  s.QueueRules.Retention,
	}
}

// watchLauncher waits for the end of ctx or of the launcher, the process that starts runners as root. It
// returns nil if ctx has ended. If the launcher has ended, it returns an error that ends the service: the
// service is no longer root and cannot start another launcher, so a user must start it again as root.
func (s *Service) watchLauncher(ctx context.Context) error {
	select {
	case err := <-s.launcher.Exit:
		return launcherEndedError(err)
	case <-ctx.Done():
		return nil
	}
}

// launcherEndedError returns the error with which the service ends because its launcher has ended.
func launcherEndedError(err error) error {
	return fmt.Errorf("%w, so the service ends too; start the service again as root (running jobs continue)", err)
}

// setTraces makes the exporter send traces of attempts to the collector that the settings name. failureText
// is a message for the user if this fails; "" means success.
func (s *Service) setTraces() (failureText string) {
	if err := s.traces.SetEndpoint(s.Settings.Current().TracesEndpoint); err != nil {
		s.Log.Error("the service sends no traces; correct the setting traces.endpoint", "error", err)
		return "the service sends no traces; correct the setting traces.endpoint: " + err.Error()
	}
	return ""
}
