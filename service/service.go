// Package service runs queuectld: it creates, connects, starts and stops the other parts of the program, and
// implements control.API.
//
// Start with Run, which starts the service and blocks until it stops, and with Service.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/dashboard"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/logs"
	"github.com/queuectl/queuectl/internal/statedir"
	"github.com/queuectl/queuectl/internal/systemd"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/traces"
	"github.com/queuectl/queuectl/upkeep"
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
	// Process attributes that the service inherited from the program that started it on demand, and that
	// could not be reset.
	Inherited []string
	// BootAdvice returns advice on how to make the service start at boot, or "" if it already does. It is
	// nil if that is unknown.
	BootAdvice func() string
	Manager    *Manager // the service manager that started the service; nil if none did
	Patient    bool     // a client that reads a stream may stop reading for any length of time
	Version    string
	Runner     []string // command line that starts a runner
	// The command line of the program that sends a webhook. It posts its standard input to the address in
	// its environment. An empty command line disables webhooks.
	Webhook  []string
	Log      *os.File    // destination of log messages
	Terminal bool        // whether Log is a terminal
	Ready    func()      // called when the socket accepts requests
	Looked   func()      // called periodically, at most twice a minute; may be nil
	Full     func(error) // called when the start waits for free disk space, with the error; may be nil
	// Crowded is called for each request that arrives while another request is in progress or another
	// connection is open. It may be nil.
	Crowded func()

	// openLocal opens the store in the state directory; nil means with the SQLite engine.
	openLocal opener
	// openRemote returns an opener for the store in the database server that the settings name.
	openRemote func(url string, node member) opener
}

// Manager is a service manager that the service notifies by calling functions, such as the one of Windows.
// It is not used for systemd, which the service notifies through a socket.
type Manager struct {
	// Listens is called once the socket exists. Requests are answered after the running jobs are adopted.
	Listens func()
	// Longer is called when the service begins to stop, and repeatedly while the stop makes progress.
	Longer func()
	Log    slog.Handler // receives every log record, in addition to Options.Log
}

// Runners names the directory and policy file of root's runners, and the socket that starts one.
type Runners struct {
	Socket, Dir, Policy string
	Own                 bool // the socket starts runners of the service's own account, not root's
}

// Service is a running queue. It implements control.API.
type Service struct {
	opt            Options
	store          store.Store
	files          store.Maintainer   // the store's maintenance operations; nil if it has none
	cluster        store.Cluster      // nil if no other node can use the store
	nodeRequests   store.NodeRequests // nil if cluster is nil
	pool           *worker.Pool
	location       storeLocation                // where the store is
	workersChanged chan struct{}                // wake-up: the number of workers has changed
	leaseTrouble   atomic.Pointer[leaseTrouble] // why the last renewal of the node lease failed; nil if it succeeded
	orphans        chan struct{}                // wake-up: a lost node has left jobs to take over
	// Cancel functions of the requests from other nodes that are being answered, by request number.
	requestCancels  sync.Map
	requestHandlers sync.WaitGroup // the goroutines that answer requests from other nodes
	remoteWaits     remoteWaits
	log             *slog.Logger
	level           slog.LevelVar
	started         queue.Millis
	node            string
	account         worker.Account
	home            runner.Home
	accounts        *launcher.Accounts // the policy that decides as which accounts root's runners run jobs
	boundSocket     *control.Socket    // the control socket, if it was bound while the service was root
	// The launcher that this service started as root; its PID is zero if it started none.
	launcher        runner.Launcher
	programs        []programFile
	stop            chan bool     // a value stops the service; true keeps the jobs
	settingsChanged chan struct{} // wake-up: settings have changed
	rolesChanged    chan struct{} // wake-up: a change of settings may have changed store_roles

	config       atomic.Pointer[config.Config]
	access       atomic.Pointer[access]
	defaults     atomic.Pointer[map[string]string]          // JSON defaults of the queues, by queue
	retentions   atomic.Pointer[map[string]store.Retention] // retention of the queues that override it, by queue
	frozenQueues atomic.Pointer[map[string]bool]            // frozen queues, whose running jobs are paused too
	gates        atomic.Pointer[map[gateName]queue.Demand]  // rules of the keys that all users share
	// The pause of all jobs: who paused them and when; nil if they are not paused.
	paused        atomic.Pointer[store.Setting]
	users         sync.Map // uid → name of the admitted peers that have a right and a name
	shares        control.Shares
	terminals     terminals
	lastLineReads onePerUser // admits one reader of last lines per user

	nextBatches nextBatches // batches that were enqueued with "next", and the priority of their first request

	directory accounts.Directory // the system's users and groups
	owners    owners

	traces *traces.Exporter  // exports attempts; set before the pool is created
	web    *dashboard.Server // the web page; set before the socket is served

	socket          *control.Socket
	socketInherited bool           // the service did not create the socket, so the settings do not control its mode
	webListeners    []net.Listener // listeners for the web page that the system passed to the service

	readOnly bool // read-only mode: no service runs, and only the queue's files are read; see Look

	// The configuration whose values take effect only at a start; nil before the start; guarded by mu.
	atStart *config.Config

	// settingsToken holds one token. A change of settings, of the number of workers or of the drain takes the
	// token before it reads the old values. It returns the token once the change is in effect. Changes
	// therefore take effect in the order in which they are stored.
	settingsToken chan struct{}

	mu sync.Mutex
	// Configuration layers in this order: defaults, file, stored, environment, flag, running; guarded by mu.
	layers      []config.Layer
	allDrained  bool // the store contains a drain of all nodes; guarded by mu
	nodeDrained bool // the store contains a drain of this node; guarded by mu
	drainReads  int  // number of calls of beginDrainRead; guarded by mu
	// The number of the newest read of a drain whose result was applied, as counted in drainReads; guarded
	// by mu.
	lastDrainRead int
	// The next applyShared applies the stored settings even if they look unchanged; guarded by
	// settingsToken.
	reapplyShared  bool
	sharedSettings []store.Setting // the settings as last read from the store; guarded by settingsToken
}

var _ control.API = (*Service)(nil)

// Run runs a service until ctx ends or the service receives a stop request. Each signal from the channel
// hup makes it read its settings again.
func Run(ctx context.Context, o Options, hup <-chan os.Signal) error {
	s := &Service{opt: o, stop: make(chan bool, 1), settingsChanged: make(chan struct{}, 1), rolesChanged: make(chan struct{}, 1), orphans: make(chan struct{}, 1), workersChanged: make(chan struct{}, 1), settingsToken: make(chan struct{}, 1), owners: owners{checkRequest: make(chan struct{}, 1)}}
	if s.opt.openLocal == nil {
		s.opt.openLocal, s.opt.openRemote = openEngine, openServer
	}
	if err := s.readSettings(); err != nil {
		return &ExitError{ExitConfig, err}
	}
	if o.Background || o.Manager != nil {
		s.makeLog(logs.Bounded{File: o.Log})
	} else {
		s.makeLog(o.Log)
	}
	if err := checkFileLimits(); err != nil {
		return &ExitError{ExitConfig, err}
	}
	if len(o.Inherited) > 0 {
		s.log.Warn("the service inherited restrictions from the process that started it", "inherited", strings.Join(o.Inherited, "; "))
	}
	if err := control.CheckSocketPath(o.Places.Socket); err != nil {
		return &ExitError{ExitConfig, err}
	}
	if s.opt.Runners.Socket == "" && accounts.Self() == 0 && s.config.Load().RunAs != config.RunAsService {
		if err := s.bootstrapRoot(); err != nil {
			return &ExitError{ExitConfig, fmt.Errorf("run_as = %q: %w", s.config.Load().RunAs, err)}
		}
	}
	if err := statedir.Make(o.Places.State); err != nil {
		return err
	}
	lock, err := lockDir(o.Places.State)
	if err != nil {
		return err
	}
	defer lock.Close()
	s.endOrphans()
	if err := s.retryWhileFull(ctx, func() error { return s.open(ctx) }); err != nil {
		s.endOrphans()
		return unlessCancelled(ctx, err)
	}
	if err = s.serve(ctx, hup); err != nil {
		s.endOrphans()
	}
	if closed := s.store.Close(); err == nil {
		err = closed
	}
	if broken := s.store.Err(); broken != nil {
		return &ExitError{ExitDatabase, broken}
	}
	return err
}

// retryWhileFull calls do until it succeeds, fails for another reason than a full disk, or ctx ends.
// Whether a full disk caused an error is found by measuring the free space after the error. Another program
// may have freed space in the meantime. After an error with a full disk, retryWhileFull therefore tries
// once more even if the next error does not look like a full disk.
func (s *Service) retryWhileFull(ctx context.Context, do func() error) error {
	for logged, doubted := false, false; ; logged = true {
		err := do()
		full := errors.Is(err, queue.ErrNoSpace) || diskFull(err)
		if err == nil || !full && (!logged || doubted) {
			return err
		}
		doubted = !full
		if !logged {
			s.log.Error("the disk is full; the service starts once there is space", "error", err)
			if s.opt.Full != nil {
				s.opt.Full(err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-s.launcher.Ended:
			return endWithLauncher(err)
		case <-time.After(diskFullRetryDelay):
		}
	}
}

// diskFullRetryDelay is the delay between two tries of retryWhileFull.
const diskFullRetryDelay = 200 * time.Millisecond

// unlessCancelled returns err. If ctx has ended, it returns nil, because the end of ctx is the cause of the
// error.
func unlessCancelled(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// open opens the store and reads everything from it that must be in effect before the first claim.
func (s *Service) open(ctx context.Context) error {
	err := s.openStore(ctx)
	switch {
	case errors.Is(err, store.ErrNewerSchema), errors.Is(err, queue.ErrInvalid):
		return &ExitError{ExitConfig, err}
	case err != nil:
		return &ExitError{ExitDatabase, err}
	}
	s.files, _ = s.store.(store.Maintainer)
	s.cluster, _ = s.store.(store.Cluster)
	s.nodeRequests, _ = s.store.(store.NodeRequests)
	// These must be in effect before the first claim.
	err = errors.Join(s.applyUserLimit(ctx), s.applyNode(ctx), s.loadRules(ctx), s.loadGates(ctx), s.owners.load(ctx, s.store))
	if err != nil {
		return &ExitError{ExitDatabase, errors.Join(err, s.store.Close())}
	}
	// A restore that was killed may have left this directory. Files that cannot be removed are harmless, so
	// errors are ignored.
	os.RemoveAll(restoreDir(s.opt.Places))
	s.started = s.store.Now()
	s.recordStartConfig()
	if err := s.resolveAccount(); err != nil {
		return s.startError("run_as", errors.Join(err, s.store.Close()))
	}
	if err := s.setTmpdir(); err != nil {
		return &ExitError{ExitConfig, errors.Join(err, s.store.Close())}
	}
	s.programs = programFiles(s.opt.Runner[0])
	if err := s.applyHooks(ctx); err != nil && !errors.Is(err, queue.ErrInvalid) {
		return &ExitError{ExitDatabase, errors.Join(err, s.store.Close())}
	}
	return nil
}

// openStore opens the store and takes the settings stored in it. If the node's identity was copied from
// another state directory, openStore creates a new identity and opens the store again.
func (s *Service) openStore(ctx context.Context) (err error) {
	s.store, err = s.openOnce(ctx)
	if errors.Is(err, errCopied) {
		if err = s.replaceNodeID(); err == nil {
			s.store, err = s.openOnce(ctx)
		}
	}
	return err
}

func (s *Service) openOnce(ctx context.Context) (store.Store, error) {
	open := s.opt.openLocal
	url, err := s.config.Load().StoreURL()
	if err != nil {
		return nil, err
	}
	s.node = s.nodeName()
	s.location = storeLocation{Dir: s.opt.Places.State, URL: url}
	if url != "" {
		var node member
		if !s.readOnly {
			if node, err = s.member(); err != nil {
				return nil, err
			}
		}
		open = s.opt.openRemote(url, node)
	}
	return open(ctx, s.opt.Places.State, s.log, func(stored []store.Setting) (queue.Order, error) {
		if err := s.setStored(stored); err != nil {
			return queue.Order{}, err
		}
		return s.config.Load().Order(), nil
	})
}

// serve runs the parts of the service until it must stop.
func (s *Service) serve(ctx context.Context, hup <-chan os.Signal) error {
	perms, err := s.socketPerms(&s.config.Load().Settings)
	if err != nil {
		return s.startError("socket_group", err)
	}
	runners, err := s.home.Lock()
	if err != nil {
		return &ExitError{ExitConfig, err}
	}
	if runners != nil {
		defer runners.Close()
	}
	if err := s.prepareStoreChange(ctx); err != nil {
		return err
	}
	s.traces = traces.New(s.opt.Version, s.node, s.log)
	defer s.traces.Close()
	s.setTraces()
	s.pool = worker.New(s.store, s.poolConfig(), s.config.Load().WorkerCount())
	if s.allDrained { // mu is not needed, since no other goroutine runs yet
		s.pool.Drain(true)
	}
	if s.paused.Load() != nil { // a runner learns of the pause when it connects
		s.pool.PauseAll(true)
	}
	if s.opt.Manager != nil {
		// Bind the socket before the adoption. The manager ends a service that takes long to start, and
		// adopting jobs may take long.
		if err := s.bind(ctx, perms); err != nil {
			return unlessCancelled(ctx, err)
		}
		defer s.socket.Close() // this disconnects the clients that are waiting
		s.opt.Manager.Listens()
	}
	if err := s.extendLease(ctx); err != nil {
		return err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	failed := make(chan error, 4)
	adopted := make(chan struct{})
	part := func(f func() error) {
		parts.Go(func() {
			if err := f(); err != nil {
				failed <- err
			}
		})
	}
	parts.Go(func() { s.keepLease(run) })
	part(func() error { return s.watchLauncher(run) })
	part(func() error { return s.pool.Run(run, func() { close(adopted) }) })
	select {
	case <-adopted:
		parts.Go(func() { s.takeOverLostNodes(run) })
	case err := <-failed:
		return s.adoptionError(err)
	case <-ctx.Done():
		// The adoption may not be complete, for example because the disk is full. The next service adopts
		// the running jobs.
		return nil
	}
	if s.socket == nil {
		if err := s.bind(ctx, perms); err != nil {
			return unlessCancelled(ctx, err)
		}
	}
	server := s.server()
	s.makeWeb(server)
	defer s.web.Close()
	part(func() error { return server.Run(run, s.socket) })
	parts.Go(func() { s.socket.Guard(run, s.log) })
	if s.files != nil {
		parts.Go(func() { s.files.Guard(run) })
		parts.Go(func() { s.files.Compact(run) })
	}
	part(func() error {
		return upkeep.Run(run, s.duties())
	})
	parts.Go(func() { s.separateOwners(run) })
	parts.Go(func() { s.pauseFrozenQueues(run) })
	parts.Go(func() { upkeep.Seek(run, s.store, s.home.Outputs, outputsSince(s.opt.Places.State), s.log) })
	parts.Go(func() { s.notifySystemd(run) })
	parts.Go(func() { s.takeSubmissions(run, server) })
	parts.Go(func() { s.serveCluster(run) })
	if every := systemd.Watchdog() / 8; every > 0 {
		parts.Go(func() { s.feedWatchdog(run, every) })
	}
	s.opt.Ready()
	return s.untilStopped(ctx, hup, failed)
}

// server returns the server of the control socket.
func (s *Service) server() *control.Server {
	if unknown := s.unknownNames(); unknown != "" {
		s.log.Warn(unknown)
	}
	server := control.NewServer(s, s.limits(), s, &s.shares, s.log)
	if s.opt.Crowded != nil {
		server.Crowded = s.opt.Crowded
	}
	if s.opt.Patient {
		server.Patience = 0
	}
	return server
}

// adoptionError explains an error that stopped the adoption of the jobs of an earlier service. Such an
// error occurs if the database is older than the state of the queue that a runner has already worked with,
// for example after a restore. The runner then rejects the service.
func (s *Service) adoptionError(err error) error {
	if !errors.Is(err, runner.ErrRefused) && !errors.Is(err, worker.ErrOlder) {
		return err
	}
	return &ExitError{ExitConfig, fmt.Errorf("the database in %s is older than the jobs of a running runner (%w); put the newer database back (if the service does not start the first time, start it again), restore a backup (queuectl --dir %s restore FILE), or end the runner and its jobs%s", s.opt.Places.State, err, queue.Word(s.opt.Places.State), s.endRunnersHint())}
}

// endRunnersHint returns the end of an error message. It says how a user can end all runners.
func (s *Service) endRunnersHint() string {
	who, where := "", ""
	if s.home.Foreign() {
		who = ", as root"
		if s.home.Dir != rootRunnersDir(s.opt.Places) {
			where = " --runner-dir " + s.home.Dir
		}
	}
	return fmt.Sprintf("%s: queuectl --dir %s service stop --runners%s", who, queue.Word(s.opt.Places.State), where)
}

// purge deletes output files. It deletes the service's own files and asks root's runners to delete those that
// only root can delete. It reports whether all files were deleted.
func (s *Service) purge(ctx context.Context, refs []string) bool {
	runner.Purge(runnersDir(s.opt.Places), refs)
	return !s.home.Foreign() || s.pool.Purge(ctx, refs)
}

// bind creates or inherits the control socket. It waits while the disk is full.
func (s *Service) bind(ctx context.Context, perms control.SocketPerms) error {
	return s.retryWhileFull(ctx, func() (err error) {
		s.socket, err = s.listen(perms)
		return err
	})
}

// listen returns the control socket that the system passed to the service, or creates one.
func (s *Service) listen(perms control.SocketPerms) (*control.Socket, error) {
	socket, handed, err := s.inheritedSockets()
	if err != nil {
		return nil, fmt.Errorf("cannot use the sockets that the system passed: %w", err)
	}
	s.webListeners = handed
	if socket == nil {
		socket = s.boundSocket
	}
	if s.socketInherited = socket != nil; s.socketInherited {
		return socket, nil
	}
	return control.Listen(s.opt.Places.Socket, perms)
}

func (s *Service) poolConfig() worker.Config {
	now := func() *config.Config { return s.config.Load() }
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
		UserQuota:   s.maxBytesUser,
		Disowned:    s.checkOwner,
		Units:       s.unitVariables,
		Traceparent: s.traces.Parent,
		Ended: func(j *queue.Job, e *store.Settlement) {
			s.traces.Ended(j, e.Lease, &e.Attempt, &e.Decision)
		},
		Frozen:     s.isFrozen,
		EndHung:    howToEnd,
		HeardEvery: func() time.Duration { return now().HeartbeatInterval },
		StaleAfter: func() time.Duration { return now().WorkerTimeout },
	}
}

func (s *Service) limits() control.Limits {
	return control.Limits{
		Connections: func() (all, user int) { return connections(s.config.Load()) },
	}
}

func (s *Service) makeLog(w io.Writer) {
	options := &slog.HandlerOptions{Level: &s.level}
	text, json := slog.NewTextHandler(w, options), slog.NewJSONHandler(w, options)
	var auto slog.Handler = json
	switch {
	case s.opt.Terminal || s.opt.Background || s.opt.Manager != nil:
		auto = text
	case logs.ToJournal(s.opt.Log):
		auto = logs.NewJournal(w, options)
	}
	var log slog.Handler = &logFormats{text: text, json: json, auto: auto, format: func() string { return s.config.Load().LogFormat }}
	if s.opt.Manager != nil {
		log = teeHandler{log, s.opt.Manager.Log}
	}
	s.log = slog.New(log)
}
