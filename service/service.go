// Package service is the program that the OS runs: it wires, starts, stops and
// answers.
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
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/traces"
	"github.com/queuectl/queuectl/upkeep"
	"github.com/queuectl/queuectl/worker"
)

// Exit codes of a service that cannot go on, as in sysexits.h: EX_IOERR and
// EX_CONFIG.
const (
	ExitDatabase = 74
	ExitConfig   = 78
)

// ExitError is an error that the process ends with.
type ExitError struct {
	Code int
	Err  error
}

// Error is the cause.
func (e *ExitError) Error() string { return e.Err.Error() }

// Unwrap is the cause.
func (e *ExitError) Unwrap() error { return e.Err }

// ExitsWith is the exit code.
func (e *ExitError) ExitsWith() int { return e.Code }

// Options are how a service is started.
type Options struct {
	Places     config.Places
	NeedFile   bool              // the settings file was named, so it must exist
	Flags      map[string]string // settings of the command line
	KeepJobs   bool              // SIGTERM leaves jobs and runners
	Unit       systemd.Unit      // with KeepJobs: but not when this unit is being stopped
	Runners    Runners           // of root's, if they are not its own
	Background bool              // a client started it on demand
	Inherited  []string          // what it could not reset of the attributes of that client's caller
	BootAdvice func() string     // returns how to make the service start at boot, "" if it does; nil if that is not known
	Manager    *Manager          // that started it and is told by calls, nil if none is
	Patient    bool              // whoever reads a stream may take any time for it
	Version    string
	Runner     []string    // the command that starts a runner
	Webhook    []string    // the command that posts what it reads, as its environment says; without it there are no webhooks
	Log        *os.File    // messages
	Terminal   bool        // Log is one
	Ready      func()      // called when the socket takes requests
	Looked     func()      // called once in half a minute or less often, unless nil
	Full       func(error) // called with the error when the start waits for space on the disk, unless nil
	Crowded    func()      // called at each request that is not the only one, unless nil

	open      opener                               // of the store; nil is the engine's, in the state folder
	elsewhere func(url string, node member) opener // of one that settings name
}

// Manager is a service manager that is told by calls, as Windows' is: systemd has a
// socket for that.
type Manager struct {
	Listens func()       // called once the socket is there; what is asked there waits until jobs are adopted
	Longer  func()       // called when the service begins to stop, and again as long as that goes on well
	Log     slog.Handler // gets each record too
}

// Runners is where runners of root's are, and the socket that starts one.
type Runners struct {
	Socket, Dir, Policy string
	Own                 bool // those that the socket starts are not root's but its own
}

// Service is a running queue. It implements control.API.
type Service struct {
	opt          Options
	store        store.Store
	files        store.Maintainer // nil if the store has none
	cluster      store.Cluster    // nil if the store is no others'
	pool         *worker.Pool
	place        place                  // where the store is
	scaled       chan struct{}          // hints that it has another count of workers
	leaseTrouble atomic.Pointer[string] // why the last renewal of the node lease failed; nil if it succeeded
	orphans      chan struct{}          // hints that nodes have left something to take over
	asked        sync.Map               // ends what other nodes ask and is being answered, by number
	answering    sync.WaitGroup         // whoever answers it
	farAsks      farAsks
	log          *slog.Logger
	level        slog.LevelVar
	started      queue.Millis
	node         string
	account      worker.Account
	home         runner.Home
	accounts     *runner.Accounts // whose jobs root's runners run
	bound        *control.Socket  // the control socket, if it was bound as root
	launcher     runner.Launcher  // that this service started as root; without a PID if it started none
	programs     []programFile
	stop         chan bool     // asked to stop; true keeps the jobs
	changed      chan struct{} // settings have
	roles        chan struct{} // they may have changed store_roles

	config    atomic.Pointer[config.Config]
	who       atomic.Pointer[access]
	defaults  atomic.Pointer[map[string]string]          // of queues, as JSON
	keeps     atomic.Pointer[map[string]store.Retention] // of queues that have their own
	frozen    atomic.Pointer[map[string]bool]            // queues
	gates     atomic.Pointer[map[gateName]queue.Demand]  // rules of everybody's keys
	paused    atomic.Pointer[store.Setting]              // by whom everything is, and since when; nil if it is not
	users     sync.Map                                   // uid → name, of who has a right and a name
	shares    control.Shares
	terminals terminals
	lines     oneEach // whose jobs' last lines are being read

	nextBatches nextBatches // what enqueue requests with next go by

	directory accounts.Directory // the system's users and groups
	owners    owners

	traces *traces.Exporter  // of attempts; set before the pool
	web    *dashboard.Server // the page; set before the socket is served, as are:

	socket   *control.Socket
	inherits bool           // the socket, whose mode is not of the settings
	handed   []net.Listener // of the page, from the system

	looks bool // it does not run, and only its files are read: see Look

	atStart *config.Config // what holds from the start; nil before, guarded by mu

	// setting holds one token: who changes settings, the count of workers or the drain
	// has it from reading what is to be changed until the change holds, so that changes
	// hold in the order in which they are stored.
	setting chan struct{}

	mu            sync.Mutex
	layers        []config.Layer  // file, stored, environment, flag, running; guarded by mu
	drains        bool            // a drain of all nodes is stored; guarded by mu
	drained       bool            // a drain of this node is stored; guarded by mu
	drainReads    int             // number of reads of drained that have begun; guarded by mu
	lastDrainRead int             // sequence number of the newest read whose result was applied; guarded by mu
	own           bool            // settings were changed here since shared was read; guarded by setting
	shared        []store.Setting // as last read from the store; guarded by setting
}

var _ control.API = (*Service)(nil)

// Run runs a service until ctx ends or it is told to stop. hup asks it to read
// its settings again.
func Run(ctx context.Context, o Options, hup <-chan os.Signal) error {
	s := &Service{opt: o, stop: make(chan bool, 1), changed: make(chan struct{}, 1), roles: make(chan struct{}, 1), orphans: make(chan struct{}, 1), scaled: make(chan struct{}, 1), setting: make(chan struct{}, 1), owners: owners{look: make(chan struct{}, 1)}}
	if s.opt.open == nil {
		s.opt.open, s.opt.elsewhere = openEngine, openServer
	}
	if err := s.readSettings(); err != nil {
		return &ExitError{ExitConfig, err}
	}
	if o.Background || o.Manager != nil {
		s.makeLog(logs.Bounded{File: o.Log})
	} else {
		s.makeLog(o.Log)
	}
	if err := heedLimits(); err != nil {
		return &ExitError{ExitConfig, err}
	}
	if len(o.Inherited) > 0 {
		s.log.Warn("the service inherited restrictions from the process that started it", "inherited", strings.Join(o.Inherited, "; "))
	}
	if err := control.CheckSocketPath(o.Places.Socket); err != nil {
		return &ExitError{ExitConfig, err}
	}
	if s.opt.Runners.Socket == "" && accounts.Self() == 0 && s.config.Load().RunAs != config.RunAsService {
		if err := s.beRoot(); err != nil {
			return &ExitError{ExitConfig, fmt.Errorf("run_as = %q: %w", s.config.Load().RunAs, err)}
		}
	}
	if err := statedir.Make(o.Places.State); err != nil {
		return err
	}
	lock, err := lockFolder(o.Places.State)
	if err != nil {
		return err
	}
	defer lock.Close()
	s.endDead()
	if err := s.whenRoom(ctx, func() error { return s.open(ctx) }); err != nil {
		s.endDead()
		return endOf(ctx, err)
	}
	if err = s.serve(ctx, hup); err != nil {
		s.endDead()
	}
	if closed := s.store.Close(); err == nil {
		err = closed
	}
	if broken := s.store.Err(); broken != nil {
		return &ExitError{ExitDatabase, broken}
	}
	return err
}

// whenRoom calls do, and calls it again until the disk has room for it or ctx ends. The cause of an error is found by
// measuring the free space after the error. Another program may have freed space in between, so the first error that
// follows a full disk is not final even if it does not look like one.
func (s *Service) whenRoom(ctx context.Context, do func() error) error {
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
		case <-time.After(roomAgain):
		}
	}
}

// roomAgain is the wait between two tries of what a full disk has no room for.
const roomAgain = 200 * time.Millisecond

// endOf is nil if ctx has ended: then that is why there was an error.
func endOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// open opens the store with the order that the settings ask for.
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
	err = errors.Join(s.boundUsers(ctx), s.bindNode(ctx), s.loadRules(ctx), s.loadGates(ctx), s.owners.load(ctx, s.store)) // before anything is claimed
	if err != nil {
		return &ExitError{ExitDatabase, errors.Join(err, s.store.Close())}
	}
	os.RemoveAll(restoringOf(s.opt.Places)) // of a restoring that was killed; what stays does no harm
	s.started = s.store.Now()
	s.holdStart()
	if err := s.settleAccount(); err != nil {
		return s.unstarted("run_as", errors.Join(err, s.store.Close()))
	}
	if err := s.settleTmpdir(); err != nil {
		return &ExitError{ExitConfig, errors.Join(err, s.store.Close())}
	}
	s.programs = programFiles(s.opt.Runner[0])
	if err := s.bindHooks(ctx); err != nil && !errors.Is(err, queue.ErrInvalid) {
		return &ExitError{ExitDatabase, errors.Join(err, s.store.Close())}
	}
	return nil
}

// openStore opens the store, whose settings it takes.
func (s *Service) openStore(ctx context.Context) (err error) {
	s.store, err = s.openOnce(ctx)
	if errors.Is(err, errCopied) {
		if err = s.ownNode(); err == nil {
			s.store, err = s.openOnce(ctx)
		}
	}
	return err
}

func (s *Service) openOnce(ctx context.Context) (store.Store, error) {
	open := s.opt.open
	url, err := s.config.Load().StoreURL()
	if err != nil {
		return nil, err
	}
	s.node = s.nodeName()
	s.place = place{Dir: s.opt.Places.State, URL: url}
	if url != "" {
		var node member
		if !s.looks {
			if node, err = s.member(); err != nil {
				return nil, err
			}
		}
		open = s.opt.elsewhere(url, node)
	}
	return open(ctx, s.opt.Places.State, s.log, func(stored []store.Setting) (queue.Order, error) {
		if err := s.setStored(stored); err != nil {
			return queue.Order{}, err
		}
		return s.config.Load().Order(), nil
	})
}

// serve runs the parts of the service until it is to stop.
func (s *Service) serve(ctx context.Context, hup <-chan os.Signal) error {
	to, err := s.entryBy(&s.config.Load().Settings)
	if err != nil {
		return s.unstarted("socket_group", err)
	}
	runners, err := s.home.Lock()
	if err != nil {
		return &ExitError{ExitConfig, err}
	}
	if runners != nil {
		defer runners.Close()
	}
	if err := s.meetAnother(ctx); err != nil {
		return err
	}
	s.traces = traces.New(s.opt.Version, s.node, s.log)
	defer s.traces.Close()
	s.setTraces()
	s.pool = worker.New(s.store, s.poolConfig(), s.config.Load().WorkerCount())
	if s.drains { // nobody else runs yet
		s.pool.Drain(true)
	}
	if s.paused.Load() != nil { // its runners are told once they are met
		s.pool.PauseAll(true)
	}
	if s.opt.Manager != nil { // it gives up a service that is slow to start, and adopting jobs can be slow
		if err := s.bind(ctx, to); err != nil {
			return endOf(ctx, err)
		}
		defer s.socket.Close() // those who wait are told
		s.opt.Manager.Listens()
	}
	if err := s.prolong(ctx); err != nil {
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
		parts.Go(func() { s.inheritAll(run) })
	case err := <-failed:
		return s.unadopted(err)
	case <-ctx.Done(): // it may wait for a disk that is full; what runs is the next one's
		return nil
	}
	if s.socket == nil {
		if err := s.bind(ctx, to); err != nil {
			return endOf(ctx, err)
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
		return upkeep.Run(run, s.store, s.changed, s.retention, s.purge, s.recurring(), s.opt.Looked, s.log)
	})
	parts.Go(func() { s.settleOwners(run) })
	parts.Go(func() { s.keepStill(run) })
	parts.Go(func() { upkeep.Seek(run, s.store, s.home.Outputs, outputsSince(s.opt.Places.State), s.log) })
	parts.Go(func() { s.tellSystem(run) })
	parts.Go(func() { s.takeSubmissions(run, server) })
	parts.Go(func() { s.takePart(run) })
	if every := systemd.Watchdog() / 8; every > 0 {
		parts.Go(func() { s.feedWatchdog(run, every) })
	}
	s.opt.Ready()
	return s.untilStopped(ctx, hup, failed)
}

// server answers who is let in.
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

// unadopted is the error of a service that cannot take over what an earlier one has left:
// a runner that has obeyed a newer state of this queue than the database has is met by
// no service of this one.
func (s *Service) unadopted(err error) error {
	if !errors.Is(err, runner.ErrRefused) && !errors.Is(err, worker.ErrOlder) {
		return err
	}
	return &ExitError{ExitConfig, fmt.Errorf("the database in %s is older than the jobs of a running runner (%w); put the newer database back (if the service then refuses to start, start it once more), restore a backup (queuectl --dir %s restore FILE), or end the runner and its jobs%s", s.opt.Places.State, err, queue.Word(s.opt.Places.State), s.endRunners())}
}

// endRunners says how to end all runners.
func (s *Service) endRunners() string {
	who, where := "", ""
	if s.home.Foreign() {
		who = ", as root"
		if s.home.Dir != rootsOf(s.opt.Places) {
			where = " --runner-dir " + s.home.Dir
		}
	}
	return fmt.Sprintf("%s: queuectl --dir %s service stop --runners%s", who, queue.Word(s.opt.Places.State), where)
}

// purge deletes output files: its own, and those of runners that only they can. It
// reports whether that was done.
func (s *Service) purge(ctx context.Context, refs []string) bool {
	runner.Purge(runnersOf(s.opt.Places), refs)
	return !s.home.Foreign() || s.pool.Purge(ctx, refs)
}

// bind takes or makes the control socket, once there is room on the disk for it.
func (s *Service) bind(ctx context.Context, to control.SocketPerms) error {
	return s.whenRoom(ctx, func() (err error) {
		s.socket, err = s.listen(to)
		return err
	})
}

// listen takes the control socket of the system, or makes its own.
func (s *Service) listen(to control.SocketPerms) (*control.Socket, error) {
	given, handed, err := s.systemsSockets()
	if err != nil {
		return nil, fmt.Errorf("use the sockets that the system passed: %w", err)
	}
	s.handed = handed
	if given == nil {
		given = s.bound
	}
	if s.inherits = given != nil; s.inherits {
		return given, nil
	}
	return control.Listen(s.opt.Places.Socket, to)
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
		Disowned:    s.disowned,
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
	var log slog.Handler = &formats{text: text, json: json, auto: auto, format: func() string { return s.config.Load().LogFormat }}
	if s.opt.Manager != nil {
		log = both{log, s.opt.Manager.Log}
	}
	s.log = slog.New(log)
}
