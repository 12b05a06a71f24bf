// Package service runs queuectld, the long-lived process that owns the queue. It creates the other parts of
// the program, connects them, starts them and stops them.
//
// Start with Run, which starts the service and blocks until it stops, and with Service.
package service

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/statedir"
	"github.com/queuectl/queuectl/internal/systemd"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/doctor"
	"github.com/queuectl/queuectl/service/hooks"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/traces"
	"github.com/queuectl/queuectl/worker"
)

// These are the exit codes of a service that cannot continue: EX_IOERR and EX_CONFIG of sysexits.h.
const (
	ExitCodeDatabase = 74
	ExitCodeConfig   = 78
)

// ExitError is an error with which the process ends, together with the exit code.
type ExitError struct {
	Code int
	Err  error
}

// Error returns the text of Err.
func (e *ExitError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ExitError) Unwrap() error { return e.Err }

// ExitsWith returns the exit code with which the process must end.
func (e *ExitError) ExitsWith() int { return e.Code }

// Options configure how a service starts.
type Options struct {
	Paths               config.Paths
	RequireSettingsFile bool              // the user named the settings file, so a missing file is an error
	FlagSettings        map[string]string // settings from the command line, by key
	KeepJobsOnStop      bool              // SIGTERM stops the service but leaves runners and jobs running
	SystemdUnit         systemd.Unit      // if KeepJobsOnStop is set and systemd is stopping this unit, the jobs end too
	// ExternalRunners says how to use runners that run as root. It is empty if the service starts its own
	// runners.
	ExternalRunners ExternalRunners
	StartedOnDemand bool // a client started the service on demand
	// InheritedRestrictions names restrictions that the service inherited from the program that started it
	// on demand. The service could not remove these restrictions.
	InheritedRestrictions []string
	// StartAtBootAdvice returns advice on how to make the service start at boot, or "" if the service already does. It is
	// nil if it is unknown whether the service starts at boot.
	StartAtBootAdvice func() string
	ServiceManager    *ServiceManager // the service manager that started the service; nil if none did
	AllowSlowReaders  bool            // a client that reads a stream may stop reading for any length of time
	Version           string
	RunnerCommand     []string // command line that starts a runner
	// WebhookCommand is the command line of the program that sends a webhook. The program posts its standard input to the
	// address in its environment. An empty command line disables webhooks.
	WebhookCommand []string
	LogFile        *os.File    // destination of log messages
	LogIsTerminal  bool        // whether LogFile is a terminal
	OnReady        func()      // called when the socket accepts requests
	OnIdleCheck    func()      // called periodically, at most twice a minute; may be nil
	OnDiskFull     func(error) // called when the start waits for free disk space, with the error; may be nil
	// OnConcurrencyLimit is called for each request that arrives while another request is in progress or another
	// connection is open. It may be nil.
	OnConcurrencyLimit func()

	// openLocalStore opens the store in the state directory; nil means the SQLite engine.
	openLocalStore storeOpener
}

// ServiceManager holds functions that notify a service manager, such as that of Windows. It is not used for systemd,
// which the service notifies through a socket.
type ServiceManager struct {
	// OnListening is called when the socket exists. Requests are answered only after the service has taken over the
	// running jobs.
	OnListening func()
	// ExtendStopTimeout is called when the service begins to stop, and repeatedly while the stop makes progress.
	ExtendStopTimeout func()
	LogHandler        slog.Handler // receives every log record, in addition to Options.LogFile
}

// ExternalRunners names the socket, the directory and the policy file of runners that run as root. A connection
// to the socket starts a runner.
type ExternalRunners struct {
	SpawnSocketPath, RunnersDir, PolicyFile string
	SpawnsAsServiceAccount                  bool // the socket's runners run as the service's account, not as root
}

// Run runs a service until ctx ends or the service receives a stop request. For each signal from reloadSignals, the
// service reads its settings again.
func Run(ctx context.Context, o Options, reloadSignals <-chan os.Signal) error {
	b, err := newStartup(o)
	if err != nil {
		return err
	}
	if err := statedir.Create(o.Paths.StateDir); err != nil {
		return err
	}
	lock, err := lockStateDir(o.Paths.StateDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	b.endOrphanProcesses()
	var s *Service
	err = b.retryWhileDiskFull(ctx, func() (err error) {
		s, err = b.openService(ctx)
		return err
	})
	if err != nil {
		b.endOrphanProcesses()
		return nilIfCancelled(ctx, err)
	}
	if err = s.serve(ctx, reloadSignals); err != nil {
		b.endOrphanProcesses()
	}
	if closed := s.Store.Close(); err == nil {
		err = closed
	}
	if broken := s.Store.Err(); broken != nil {
		return &ExitError{ExitCodeDatabase, broken}
	}
	return err
}

// nilIfCancelled returns err, or nil if ctx has ended, because an error after the end of ctx is a consequence of that
// end.
func nilIfCancelled(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Service is an open queue with all parts that work on it, except the parts that answer requests. The parts that answer
// requests are in frontEnd.
type Service struct {
	*startup
	admission     *access.Admission
	traceExporter *traces.Exporter // nil exports no traces
}

// newService returns the parts that work on the open store of st. runners says where the runners are. account is the
// account that jobs run as by default. A nil exporter exports no traces.
func newService(st *startup, runners runner.RunnersLocation, account worker.Account,
	exporter *traces.Exporter) *Service {
	s, d := &Service{startup: st, traceExporter: exporter}, st.Dependencies
	d.StartedAt, d.RunnerLocation, d.JobAccount = d.Store.Now(), runners, account
	d.StoreMaintainer, _ = d.Store.(store.Maintainer)
	d.Cluster, _ = d.Store.(store.Cluster)
	requests, _ := d.Store.(store.NodeRequests)
	d.OutputFiles = &cluster.OutputFiles{RunnerLocation: runners, Paths: d.Paths}
	if d.StartedOnDemand || st.options.ServiceManager != nil {
		d.LogFile = st.options.LogFile
	}
	d.QueueRules = &settings.QueueRules{Store: d.Store, Settings: d.Settings}
	d.GateRules = &settings.GateRules{Store: d.Store}
	d.UserQuota = &settings.UserQuota{Maintainer: d.StoreMaintainer, Store: d.Store, Settings: d.Settings}
	d.JobAccountFor, d.ApplyTraceSettings = st.jobAccount, s.configureTraceExport
	d.Owners = access.NewOwners(d.Store, d.Cluster, d.UserDirectory, account)
	d.Guard = &access.Guard{
		Owners: d.Owners, Rights: d.Rights, RunnerLocation: runners, RunnerAccountPolicy: st.runnerAccountPolicy(),
	}
	d.Hooks = &hooks.Hooks{
		JobAccount: account, Log: d.Log, Store: d.Store, WebhookCommand: st.options.WebhookCommand,
		UserDirectory: d.UserDirectory, Owners: d.Owners, UserQuota: d.UserQuota, Settings: d.Settings,
	}
	workers := 0 // the pool never runs in read-only mode
	if !d.ReadOnly {
		workers = d.Settings.CurrentConfig().WorkerCount()
	}
	d.Pool = worker.New(d.Store, s.poolConfig(), workers)
	d.NodeRegistry = &cluster.NodeRegistry{
		NodeName: d.NodeName, Store: d.Store, Owners: d.Owners, Settings: d.Settings, Cluster: d.Cluster, Pool: d.Pool,
		ServiceStartedAt: d.StartedAt, ServiceVersion: d.Version,
	}
	d.JobRouter = &cluster.JobRouter{
		NodeRegistry: d.NodeRegistry, NodeRequests: requests, OutputFiles: d.OutputFiles,
		RemoteWaitLimiter: cluster.NewRemoteWaitLimiter(),
	}
	d.Drainer = &cluster.Drainer{Cluster: d.Cluster, Pool: d.Pool, DrainState: d.DrainState}
	d.NodeLeaseKeeper = cluster.NewNodeLeaseKeeper(d.Log, d.Drainer, d.NodeRegistry)
	s.admission = &access.Admission{
		Log: d.Log, SettingsLock: d.SettingsLock, Owners: d.Owners, Rights: d.Rights,
		StoreNodeRecord: d.NodeRegistry.StoreNodeRecord,
	}
	return s
}

// openService opens the store, and returns the parts that work on it.
func (st *startup) openService(ctx context.Context) (*Service, error) {
	err := st.openStore(ctx)
	switch {
	case errors.Is(err, store.ErrNewerSchema), errors.Is(err, queue.ErrInvalid):
		return nil, &ExitError{ExitCodeConfig, err}
	case err != nil:
		return nil, &ExitError{ExitCodeDatabase, err}
	}
	s, failed := st.prepareService(ctx)
	if failed != nil {
		failed.Err = errors.Join(failed.Err, st.Store.Close())
		return nil, failed
	}
	return s, nil
}

// prepareService returns the parts that work on a store that was just opened. From the store, it reads all settings
// that must be in effect before the first job is claimed.
func (st *startup) prepareService(ctx context.Context) (*Service, *ExitError) {
	// Remove what a killed restore may have left here. Ignore errors, since files that remain are harmless.
	os.RemoveAll(restoreTempDir(st.Paths))
	st.Settings.RecordConfigAtStart()
	account, err := st.jobAccount(&st.Settings.CurrentConfig().Settings)
	if err != nil {
		return nil, st.settingStartError("run_as", err)
	}
	runners, err := st.chooseRunnerLocation()
	if err != nil {
		return nil, &ExitError{ExitCodeConfig, err}
	}
	s := newService(st, runners, account, traces.New(st.Version, st.NodeName, st.Log))
	err = errors.Join(s.Store.SetMaxRunningPerUser(ctx, s.Settings.CurrentConfig().MaxRunningPerUser),
		s.NodeRegistry.StoreNodeRecord(ctx), s.QueueRules.LoadQueueRules(ctx), s.GateRules.LoadGateRules(ctx),
		s.Owners.LoadOwnerNames(ctx))
	if err != nil {
		return nil, &ExitError{ExitCodeDatabase, err}
	}
	if err := s.Hooks.ApplyHookSettings(ctx); err != nil && !errors.Is(err, queue.ErrInvalid) {
		return nil, &ExitError{ExitCodeDatabase, err}
	}
	return s, nil
}

// poolConfig returns the configuration of the worker pool.
func (s *Service) poolConfig() worker.Config {
	now := func() *config.Config { return s.Settings.CurrentConfig() }
	return worker.Config{
		RunnerLocation:     s.RunnerLocation,
		ServiceVersion:     s.Version,
		NodeName:           s.NodeName,
		SocketPath:         s.Paths.SocketPath,
		Account:            s.JobAccount,
		Log:                s.Log,
		RetryPolicy:        func() queue.RetryPolicy { return now().RetryPolicy() },
		StoreTime:          s.Store.Now,
		StopTimeout:        func() time.Duration { return now().StopTimeout },
		OutputGrace:        func() time.Duration { return now().OutputGrace },
		SettleDelay:        func() time.Duration { return now().SettleCommitDelay },
		UserQuotaBytes:     s.UserQuota.MaxBytesPerUser,
		CheckJobMayStart:   s.Owners.CheckJobAccountsUnchanged,
		ResourceUnitEnv:    s.Settings.ResourceUnitEnvVars,
		AttemptTraceparent: s.traceExporter.AttemptTraceparent,
		OnAttemptEnded: func(j *queue.Job, e *store.Settlement) {
			s.traceExporter.ExportAttempt(j, e.Lease, &e.Attempt, &e.Decision)
		},
		AreRunningJobsPaused: s.QueueRules.RunningJobsPaused,
		HungRunnerAdvice:     doctor.HungRunnerAdvice,
		HeartbeatInterval:    func() time.Duration { return now().HeartbeatInterval },
		WorkerStaleAfter:     func() time.Duration { return now().WorkerTimeout },
	}
}
