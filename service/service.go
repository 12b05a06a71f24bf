// Package service runs queuectld: it creates, connects, starts and stops the other parts of the program, and
// implements control.API.
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
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/statedir"
	"github.com/queuectl/queuectl/internal/systemd"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/doctor"
	"github.com/queuectl/queuectl/service/handlers"
	"github.com/queuectl/queuectl/service/hooks"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/traces"
	"github.com/queuectl/queuectl/worker"
)

// These are the exit codes of a service that cannot continue. They are EX_IOERR and EX_CONFIG from
// sysexits.h.
const (
	ExitDatabase = 74
	ExitConfig   = 78
)

// ExitError is an error that ends the process with an exit code.
type ExitError struct {
	Code int
	Err  error
}

// Error returns the text of the cause.
func (e *ExitError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ExitError) Unwrap() error { return e.Err }

// ExitsWith returns the exit code.
func (e *ExitError) ExitsWith() int { return e.Code }

// Options configure how a service starts.
type Options struct {
	Places     config.Places
	NeedFile   bool              // the user named the settings file, so a missing file is an error
	Flags      map[string]string // settings from the command line, by key
	KeepJobs   bool              // SIGTERM stops the service but leaves runners and jobs running
	Unit       systemd.Unit      // if KeepJobs is set and systemd is stopping this unit, the jobs end too
	Runners    Runners           // how to use root's runners; empty if the service starts its own runners
	Background bool              // a client started the service on demand
	// InheritedRestrictions are process attributes that the service inherited from the program that started it on
	// demand, and that could not be reset.
	InheritedRestrictions []string
	// BootAdvice returns advice on how to make the service start at boot, or "" if it already does. It is
	// nil if that is unknown.
	BootAdvice       func() string
	Manager          *Manager // the service manager that started the service; nil if none did
	AllowSlowReaders bool     // a client that reads a stream may stop reading for any length of time
	Version          string
	Runner           []string // command line that starts a runner
	// Webhook is the command line of the program that sends a webhook. The program posts its standard input to the
	// address in its environment. An empty command line disables webhooks.
	Webhook     []string
	Log         *os.File    // destination of log messages
	Terminal    bool        // whether Log is a terminal
	OnReady     func()      // called when the socket accepts requests
	OnIdleCheck func()      // called periodically, at most twice a minute; may be nil
	OnDiskFull  func(error) // called when the start waits for free disk space, with the error; may be nil
	// OnConcurrencyLimit is called for each request that arrives while another request is in progress or another
	// connection is open. It may be nil.
	OnConcurrencyLimit func()

	// openLocal opens the store in the state directory; nil means the SQLite engine.
	openLocal opener
	// openRemote returns an opener for the store in the database server that the settings name.
	openRemote func(url string, node member) opener
}

// Manager is a service manager that the service notifies by calling functions, such as the one of Windows.
// It is not used for systemd, which the service notifies through a socket.
type Manager struct {
	// OnListening is called once the socket exists. Requests are answered after the running jobs are adopted.
	OnListening func()
	// ExtendStopTimeout is called when the service begins to stop, and repeatedly while the stop makes progress.
	ExtendStopTimeout func()
	Log               slog.Handler // receives every log record, in addition to Options.Log
}

// Runners names the directory and policy file of root's runners, and the socket that starts one.
type Runners struct {
	Socket, Dir, Policy string
	OwnAccount          bool // the socket starts runners of the service's own account, not root's
}

// Run runs a service until ctx ends or the service receives a stop request. Each signal from the channel
// hup makes it read its settings again.
func Run(ctx context.Context, o Options, hup <-chan os.Signal) error {
	if o.openLocal == nil {
		o.openLocal, o.openRemote = openEngine, openServer
	}
	b, err := newStartup(o)
	if err != nil {
		return err
	}
	if err := statedir.Make(o.Places.State); err != nil {
		return err
	}
	lock, err := lockDir(o.Places.State)
	if err != nil {
		return err
	}
	defer lock.Close()
	b.endOrphans()
	var s *Service
	err = b.disk.retryWhileFull(ctx, func() (err error) {
		s, err = b.open(ctx)
		return err
	})
	if err != nil {
		b.endOrphans()
		return unlessCancelled(ctx, err)
	}
	if err = s.serve(ctx, hup); err != nil {
		b.endOrphans()
	}
	if closed := s.store.Close(); err == nil {
		err = closed
	}
	if broken := s.store.Err(); broken != nil {
		return &ExitError{ExitDatabase, broken}
	}
	return err
}

// unlessCancelled returns err. If ctx has ended, it returns nil, because the end of ctx is the cause of the
// error.
func unlessCancelled(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Service is an open queue with the parts that work on it, except those that answer requests.
type Service struct {
	*startup
	openQueue
	account worker.Account  // account that jobs run as
	home    runner.Location // where the runners are

	lock        *settings.Lock
	queueRules  *settings.QueueRules
	gateRules   *settings.GateRules
	quota       *settings.Quota
	units       *settings.Units
	owners      *access.Owners
	guard       *access.Guard
	runAs       *access.RunAs
	self        *cluster.ThisNode
	hooks       *hooks.Hooks
	tracing     *tracing
	outputFiles *cluster.OutputFiles
	pool        *worker.Pool
	nodeList    *cluster.NodeList
	router      *cluster.JobRouter
	drains      *cluster.Drains
	lease       *cluster.LeaseKeeper
	shares      *control.UserLimits
}

// openQueue is the open store, and the information that this node has about it.
type openQueue struct {
	store        store.Store
	files        store.Maintainer   // the store's maintenance operations; nil if it has none
	cluster      store.Cluster      // nil if no other node can use the store
	nodeRequests store.NodeRequests // nil if cluster is nil
	location     storeLocation      // where the store is
	node         string             // name of this node
	startedAt    queue.Millis       // when the store was opened
}

// newService returns the parts that work on an open queue. The runners in home run its jobs as account. A nil
// exporter exports no traces.
func newService(b *startup, q openQueue, home runner.Location, account worker.Account,
	exporter *traces.Exporter) *Service {
	s := &Service{
		startup: b, openQueue: q, account: account, home: home,
		lock: settings.NewLock(), shares: control.NewUserLimits(),
	}
	s.queueRules = &settings.QueueRules{Store: q.store, Settings: b.settings}
	s.gateRules = &settings.GateRules{Store: q.store}
	s.quota = &settings.Quota{Files: q.files, Store: q.store, Settings: b.settings}
	s.units = &settings.Units{Settings: b.settings}
	s.owners = access.NewOwners(q.store, q.cluster, b.directory, account)
	s.guard = &access.Guard{Store: q.store, Owners: s.owners, Rights: b.rights}
	s.runAs = &access.RunAs{
		Account: account, Home: home, Places: b.opt.Places, Accounts: b.runnerPolicy(), Directory: b.directory,
		Owners: s.owners, Rights: b.rights,
	}
	s.self = &cluster.ThisNode{Node: q.node, Store: q.store, Owners: s.owners, Settings: b.settings}
	s.hooks = &hooks.Hooks{
		Account: account, Log: b.log, Store: q.store, Webhook: b.opt.Webhook, Directory: b.directory,
		Owners: s.owners, Quota: s.quota, Settings: b.settings,
	}
	s.tracing = &tracing{traces: exporter, log: b.log, settings: b.settings}
	s.outputFiles = &cluster.OutputFiles{Home: home, Places: b.opt.Places}
	workers := 0 // the pool of read-only mode never runs
	if !b.readOnly {
		workers = b.settings.Current().WorkerCount()
	}
	s.pool = worker.New(q.store, s.poolConfig(), workers)
	s.nodeList = &cluster.NodeList{
		Cluster: q.cluster, Node: q.node, Pool: s.pool, StartedAt: q.startedAt, Store: q.store,
		Version: b.opt.Version, Self: s.self,
	}
	s.router = &cluster.JobRouter{
		Cluster: q.cluster, Requests: q.nodeRequests, Node: q.node, Pool: s.pool, NodeList: s.nodeList,
		OutputFiles: s.outputFiles, RemoteWaits: cluster.NewRemoteWaits(),
	}
	s.drains = &cluster.Drains{Cluster: q.cluster, Pool: s.pool, DrainState: b.drainState}
	s.lease = cluster.NewLeaseKeeper(q.cluster, b.log, s.pool, s.drains, s.nodeList, b.settings)
	return s
}

// load reads everything from the store that must be in effect before the first claim.
func (s *Service) load(ctx context.Context) error {
	return errors.Join(handlers.ApplyUserLimit(ctx, s.store, s.settings), s.self.ApplyNode(ctx),
		s.queueRules.LoadRules(ctx), s.gateRules.LoadGates(ctx), s.owners.Load(ctx))
}

// open opens the store, and returns the parts that work on it.
func (b *startup) open(ctx context.Context) (*Service, error) {
	q, err := b.openStore(ctx)
	switch {
	case errors.Is(err, store.ErrNewerSchema), errors.Is(err, queue.ErrInvalid):
		return nil, &ExitError{ExitConfig, err}
	case err != nil:
		return nil, &ExitError{ExitDatabase, err}
	}
	s, failed := b.prepare(ctx, q)
	if failed != nil {
		failed.Err = errors.Join(failed.Err, q.store.Close())
		return nil, failed
	}
	return s, nil
}

// prepare returns the parts that work on a store that was just opened. It reads everything from the store that
// must be in effect before the first claim.
func (b *startup) prepare(ctx context.Context, q openQueue) (*Service, *ExitError) {
	// A restore that was killed may have left this directory. Files that cannot be removed are harmless, so
	// errors are ignored.
	os.RemoveAll(restoreDir(b.opt.Places))
	b.settings.RecordStartConfig()
	account, err := b.accountChoice().accountBy(&b.settings.Current().Settings)
	if err != nil {
		return nil, b.startError("run_as", err)
	}
	home, err := b.runnerHome()
	if err != nil {
		return nil, &ExitError{ExitConfig, err}
	}
	s := newService(b, q, home, account, traces.New(b.opt.Version, q.node, b.log))
	if err := s.load(ctx); err != nil {
		return nil, &ExitError{ExitDatabase, err}
	}
	if err := s.hooks.ApplyHooks(ctx); err != nil && !errors.Is(err, queue.ErrInvalid) {
		return nil, &ExitError{ExitDatabase, err}
	}
	return s, nil
}

// poolConfig returns the configuration of the worker pool.
func (s *Service) poolConfig() worker.Config {
	now := func() *config.Config { return s.settings.Current() }
	return worker.Config{
		Runners:     s.home,
		Version:     s.opt.Version,
		Node:        s.node,
		Socket:      s.opt.Places.Socket,
		Account:     s.account,
		Log:         s.log,
		Policy:      func() queue.Policy { return now().Policy() },
		Clock:       s.store.Now,
		StopTimeout: func() time.Duration { return now().StopTimeout },
		OutputGrace: func() time.Duration { return now().OutputGrace },
		SettleDelay: func() time.Duration { return now().SettleDelay },
		UserQuota:   s.quota.MaxBytesUser,
		CheckStart:  s.owners.CheckOwner,
		Units:       s.units.UnitVariables,
		Traceparent: s.tracing.traces.Parent,
		OnAttemptEnded: func(j *queue.Job, e *store.Settlement) {
			s.tracing.traces.ExportAttempt(j, e.Lease, &e.Attempt, &e.Decision)
		},
		Frozen:            s.queueRules.IsFrozen,
		HungRunnerAdvice:  doctor.HowToEnd,
		HeartbeatInterval: func() time.Duration { return now().HeartbeatInterval },
		StaleAfter:        func() time.Duration { return now().WorkerTimeout },
	}
}
