package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// idleExit is how long a runner without a service and without jobs waits before it ends. disconnectSync
// is how long the runner waits after its service has disconnected. From then on, it flushes its journal
// to the disk, so that the results survive a power cut.
const (
	idleExit          = 30 * time.Second
	disconnectSync    = time.Second
	housekeepInterval = 30 * time.Second // time between two rounds of the method housekeep
)

// Options configure a runner process.
type Options struct {
	Root    string // directory that contains the directories of all runners
	Tmpdir  string // job_tmpdir: holds the private directories of jobs; "" is a directory below Root
	Version string
	Alone   bool // the runner runs one isolated job only
	// Service is the uid of the service. The runner accepts connections from this uid and from root.
	Service int
	// Policy is the path of the policy file, which says whose jobs the runner may run. If it is set,
	// the runner runs as root and starts each job under the account that its START frame names. It is
	// "" for a runner without root privileges.
	Policy string
	// Credentials holds the systemd credentials that jobs may use, by name. It is set for a runner that
	// started as root and then switched to the account of its jobs for good.
	Credentials map[string][]byte
	// Watchdog is the command line that starts this program as a watchdog.
	Watchdog []string
	// Unwanted reports whether the operating system has stopped the service for good. The runner calls
	// it while no service is connected. It may be nil.
	Unwanted func() bool
	// Ending is called every endingInterval while the runner shuts down after ctx has ended and still
	// waits for jobs. It may be nil.
	Ending func()
	// Cgroups manages the control groups of the jobs. It is nil if the runner has none.
	Cgroups *process.Cgroups
	Log     *slog.Logger
	// Ready is called once the runner's socket accepts connections.
	Ready func(dir string)
}

// server is the state of a runner process.
type server struct {
	Options
	dir        string // the runner's own directory, below Root
	groupReads bool   // the group of Root may read the runner's files
	workspaces string // contains the private directories of attempts
	table      *rundir.Table
	name       string             // unique name of this runner; also the prefix of its jobs' cookies
	accounts   *launcher.Accounts // nil unless the runner runs as root
	watchdog   *launcher.Watchdog // nil unless the runner runs as root
	socket     *socket

	mu       sync.Mutex
	epoch    int64
	conn     *conn // connection to the service with the newest epoch; nil while none is connected
	attempts map[wire.Lease]*attempt
	waiting  []*attempt // attempts that no worker has started, in start order
	// slots counts, for each slot of the running table, the reasons why it is taken: its attempt runs,
	// has processes that outlive SIGKILL, or has a result that is not in the journal. A slot with count
	// 0 is free.
	slots         [rundir.MaxSlots + 1]int8
	reservedSlots int            // slots that have disk space reserved in the running table
	slotAwaited   bool           // a worker waits for a free slot
	unjournaled   int            // number of results that could not be written to the journal
	stuckAttempts []wire.Attempt // ended attempts with processes that outlive SIGKILL; each keeps its slot
	workerCount   int            // workers, running or idle
	runningCount  int            // attempts that are running on a worker
	targetWorkers int
	settleDelay   time.Duration // how long results are gathered before they are sent; set by a SETUP frame
	// stopTimeout is how long running attempts may continue when the operating system ends the runner
	// while no service is connected. A SETUP frame sets it.
	stopTimeout   time.Duration
	closing       bool // the runner ends once no attempt is left to run
	dismissed     bool // the service sent SHUTDOWN and does not need the runner's directory any more
	journal       *rundir.Journal
	diskQueue     diskQueue     // disk operations, which must not run while mu is held
	sweeper       sweeper       // removes the private directories of ended attempts
	dirNames      int           // number of private directory names handed out
	idleDirTimer  *time.Timer   // makes idle workers remove their private directories; nil before its first use
	idleAt        time.Time     // time since when the runner has had no service and no running attempts
	leasesEnd     time.Time     // end of the service's leases; zero if they do not expire
	leasesEndBoot time.Duration // leasesEnd as time since boot; 0 if unknown
	leaseTimer    *time.Timer   // runs checkLeases when the leases expire; nil before its first use
	// leaseWatchdog is the watchdog that kills this process if it hangs when the leases expire. It is
	// nil while no such watchdog runs.
	leaseWatchdog   *launcher.Watchdog
	watchdogSettled bool          // leaseWatchdog is running, or could not be started
	leasesExpire    bool          // the leases are limited in time; also stored in the running table
	leasesSeen      chan struct{} // closed once the service has sent a lease with an end
	leasesSeenOnce  sync.Once     // closes leasesSeen
	workerCond      *sync.Cond    // signals changes of the fields that nextAttempt checks
	disconnected    chan struct{} // closed while no service is connected
	orphanHint      chan struct{} // receives a hint that an attempt may have left orphans
	done            chan struct{} // closed when the runner ends
	workers         sync.WaitGroup
	warnUnenforced  sync.Once // logs once that limits are not enforced
	warnUnbounded   sync.Once // logs once that the runner's own memory is not limited
	threadCount     int       // number of threads that the Go runtime was made to create
}

// Serve runs a runner process. It creates the runner's directory below Root. It serves until ctx ends,
// the service sends Shutdown, the directory is removed, or the runner has been idle for idleExit.
// Before it returns, it ends the running jobs and stores their results in the journal.
func Serve(ctx context.Context, o Options) error {
	pid := os.Getpid()
	s := &server{
		Options:      o,
		name:         fmt.Sprintf("%d.%x", pid, time.Now().UnixNano()),
		attempts:     map[wire.Lease]*attempt{},
		idleAt:       time.Now(),
		done:         make(chan struct{}),
		disconnected: make(chan struct{}),
		orphanHint:   make(chan struct{}, 1),
		leasesSeen:   make(chan struct{}),
	}
	close(s.disconnected)
	if o.Alone {
		s.name += runner.IsolatedSuffix
	}
	if o.Policy != "" {
		s.accounts = &launcher.Accounts{Policy: o.Policy, Service: o.Service, Directory: &accounts.Directory{Patient: true}}
	}
	s.workerCond = sync.NewCond(&s.mu)
	s.dir = filepath.Join(o.Root, s.name)
	info, err := os.Stat(o.Root)
	if err != nil {
		return fmt.Errorf("cannot check the runner directory: %w", err)
	}
	s.groupReads = info.Mode()&os.ModeSetgid != 0
	if err := os.MkdirAll(filepath.Join(o.Root, rundir.OutputsName), s.mode(0o700)); err != nil {
		return fmt.Errorf("cannot create the output directory: %w", err)
	}
	lock, err := s.setUp(pid)
	if err != nil {
		return err
	}
	defer lock.Close()
	s.sweeper.init(s.Log)
	s.diskQueue.wake = make(chan struct{}, 1)
	if s.accounts != nil {
		if s.watchdog, err = launcher.StartWatchdog(o.Watchdog, s.dir, true, s.Log); err != nil {
			return err
		}
		defer s.watchdog.End()
		s.leaseWatchdog, s.watchdogSettled = s.watchdog, true
	}
	o.Ready(s.dir)

	s.run(ctx)
	s.table.SetLeasesExpire(false) // shows the watchdog that no jobs are left to end
	if err := rundir.RemoveWorkspaces(s.workspaces, time.Now().Add(rundir.RemoveTimeout)); err != nil {
		s.Log.Warn("could not remove all private directories of jobs", "error", err)
	}
	return s.removeIfDismissed(lock)
}

// run serves until the runner ends and all its goroutines have returned.
func (s *server) run(ctx context.Context) {
	var loops sync.WaitGroup
	loops.Go(s.accept)
	loops.Go(s.housekeep)
	loops.Go(func() { s.diskQueue.run(s.done) })
	loops.Go(func() { s.sweeper.run(s.done) })
	if s.watchdog == nil {
		loops.Go(s.startLeaseWatchdog)
	}
	guardCtx, stopGuard := context.WithCancel(context.Background())
	dirRemoved := make(chan struct{})
	loops.Go(func() {
		if s.socket.maintain(guardCtx, s.Log) {
			close(dirRemoved)
		}
	})
	stop := make(chan struct{}, 1)
	if s.Unwanted != nil {
		loops.Go(func() { s.watchUnit(stop) })
	}
	select {
	case <-ctx.Done():
		if s.Ending != nil {
			loops.Go(s.reportEnding)
		}
		s.stopAll(runner.GraceOf(ctx))
		<-s.done
	case <-stop:
		s.stopAll(runner.StopGrace())
		<-s.done
	case <-dirRemoved:
		s.Log.Error("this runner's directory was removed, so no service can find this runner; ending the runner and its jobs", "dir", s.dir)
		s.stopAll(runner.StopGrace())
		<-s.done
	case <-s.done:
	}
	stopGuard()
	s.socket.close()
	s.workers.Wait()
	loops.Wait()
}

// mode returns the mode of a file or directory of the runner, given the owner's permissions. If the
// runner's directory is shared, the group gets the owner's permissions to read and enter.
func (s *server) mode(owner os.FileMode) os.FileMode {
	if s.groupReads {
		return owner | owner>>3&0o050
	}
	return owner
}

// setUp creates the runner's directory. It takes the lock first, so that no service considers the
// runner dead, and creates the socket last.
func (s *server) setUp(pid int) (*os.File, error) {
	if err := os.Mkdir(s.dir, s.mode(0o700)); err != nil {
		return nil, fmt.Errorf("cannot create the runner's directory: %w", err)
	}
	lock, err := rundir.WaitForLock(func() (*os.File, bool, error) {
		return rundir.Lock(filepath.Join(s.dir, rundir.LockName), s.mode(0o600))
	})
	if err != nil || lock == nil { // waitForLock outlasts a service that only checks the lock
		return nil, errors.Join(errors.New("another process holds the runner's lock"), err)
	}
	boot, err := process.BootID()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(s.dir, rundir.BootName), []byte(rundir.NoteOf(boot)), s.mode(0o600)); err != nil {
		return nil, fmt.Errorf("cannot write the boot ID: %w", err)
	}
	if s.Tmpdir != "" {
		if err := rundir.StoreTmpdir(s.dir, s.Tmpdir, s.mode(0o600)); err != nil {
			return nil, err
		}
	}
	if s.workspaces, err = rundir.MakeWorkspaces(s.Root, s.Tmpdir, s.name, s.accounts != nil); err != nil {
		lock.Close()
		os.RemoveAll(s.dir) // if something remains, it is removed later, like the directory of a dead runner
		return nil, err
	}
	if s.table, err = rundir.MakeTable(s.dir, s.mode(0o600), pid, process.SelfTicks()); err != nil {
		return nil, err
	}
	if s.journal, err = rundir.OpenJournal(s.dir, s.mode(0o600), s.table.SetJournalSize); err != nil {
		return nil, err
	}
	if s.socket, err = listenAt(filepath.Join(s.dir, rundir.SockName), s.socketMode()); err != nil {
		return nil, fmt.Errorf("cannot listen on the runner's socket: %w", err)
	}
	return lock, nil
}

// socketMode returns the mode of the socket. A client needs write permission to connect.
func (s *server) socketMode() os.FileMode {
	if s.groupReads {
		return 0o660
	}
	return 0o600
}

// removeIfDismissed removes the runner's directory if the service has dismissed the runner and has
// stored all its results. Otherwise the directory stays, so that the next service can read the results
// from it.
func (s *server) removeIfDismissed(lock *os.File) error {
	if unacknowledged, dismissed := s.unacknowledged(); unacknowledged || !dismissed {
		return s.journal.Sync()
	}
	return errors.Join(s.journal.Close(), s.table.Close(), rundir.Remove(s.dir, lock))
}

// unacknowledged reports whether the runner has results that the service has not acknowledged, and
// whether the service has dismissed the runner.
func (s *server) unacknowledged() (results, dismissed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.attempts {
		results = results || a.result != nil
	}
	return results, s.dismissed
}

// unwantedInterval is the time between two calls of Unwanted. The runner ends after two successive
// calls that return true.
const unwantedInterval = 2 * time.Second

// watchUnit ends the runner once the operating system has stopped the service for good. This matters if
// the service was not running then, and so could not send Shutdown to the runner.
func (s *server) watchUnit(stop chan<- struct{}) {
	tick := time.NewTicker(unwantedInterval)
	defer tick.Stop()
	for seen := 0; ; {
		select {
		case <-s.done:
			return
		case <-s.whenDisconnected():
		}
		select {
		case <-s.done:
			return
		case <-tick.C:
		}
		if s.isDisconnected() && s.Unwanted() {
			seen++
		} else {
			seen = 0
		}
		if seen == 2 {
			s.Log.Info("the service was stopped for good, so this runner ends")
			stop <- struct{}{}
			return
		}
	}
}

// whenDisconnected returns a channel that is closed while no service is connected.
func (s *server) whenDisconnected() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.disconnected
}

func (s *server) isDisconnected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn == nil
}

// updateDisconnected updates disconnected after a service has connected or disconnected. The caller
// holds mu.
func (s *server) updateDisconnected() {
	select {
	case <-s.disconnected:
		if s.conn != nil {
			s.disconnected = make(chan struct{})
		}
	default:
		if s.conn == nil {
			close(s.disconnected)
		}
	}
}

// endingInterval is the time between two calls of Ending.
const endingInterval = 10 * time.Second

// reportEnding calls Ending repeatedly until the runner ends. Ending reports to the operating system
// that the runner needs more time.
func (s *server) reportEnding() {
	tick := time.NewTicker(endingInterval)
	defer tick.Stop()
	for {
		s.Ending()
		select {
		case <-s.done:
			return
		case <-tick.C:
		}
	}
}

// reapPause is the time between two checks for ended orphans while some orphans are still running.
const reapPause = 100 * time.Millisecond

// reap reaps orphans that have ended. It returns a channel that delivers when to call reap again, or
// nil if no orphans are left.
func (s *server) reap() (next <-chan time.Time) {
	if process.Reap() {
		return time.After(reapPause)
	}
	return nil
}

// housekeep performs periodic work every housekeepInterval: it reaps orphans, cleans up, and ends a
// runner that has been idle for idleExit. After an attempt that may have left orphans, housekeep reaps
// them without waiting for the next round.
func (s *server) housekeep() {
	tick := time.NewTicker(housekeepInterval)
	defer tick.Stop()
	var nextReap <-chan time.Time // nil while no orphans are running
	for {
		select {
		case <-s.done:
			return
		case <-s.orphanHint:
			nextReap = s.reap()
			continue
		case <-nextReap:
			nextReap = s.reap()
			continue
		case <-tick.C:
		}
		nextReap = s.reap()
		if s.Cgroups != nil {
			s.Cgroups.Sweep()
		}
		s.retryJournal()
		s.sweeper.addLeftovers(s.workspaces)
		s.mu.Lock()
		if s.conn != nil || s.busy() || len(s.stuckAttempts) > 0 {
			s.idleAt = time.Now()
		} else if time.Since(s.idleAt) > idleExit {
			s.close()
		}
		s.mu.Unlock()
	}
}

// busy reports whether any attempt has not ended. The caller holds mu.
func (s *server) busy() bool {
	for _, a := range s.attempts {
		if a.result == nil {
			return true
		}
	}
	return false
}

// close ends the runner once all its attempts have ended. From now on, workers start no waiting
// attempt. The caller holds mu.
func (s *server) close() {
	if !s.closing {
		s.closing = true
		s.workerCond.Broadcast()
	}
	s.endIfDone()
}

// isDone reports whether the runner is ending. The caller holds mu.
func (s *server) isDone() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// endIfDone ends a closing runner if no attempt is left to run. The caller holds mu.
func (s *server) endIfDone() {
	if s.closing && !s.busy() && !s.isDone() {
		close(s.done)
	}
}

// stopAll ends the runner. It drops the waiting attempts. If the runner is a unit of the operating
// system and no service is connected, it then waits for stopTimeout: running attempts may end by
// themselves. Finally, it ends the attempts that still run; their cause is that the service stopped. An
// attempt gets at most grace between SIGTERM and SIGKILL.
func (s *server) stopAll(grace time.Duration) {
	s.mu.Lock()
	for _, a := range s.waiting {
		s.discard(a)
	}
	s.waiting = nil
	s.close()
	wait := s.stopTimeout
	if s.conn != nil || s.Unwanted == nil {
		// A connected service itself waits for its jobs; stopTimeout is only for a runner that is a
		// unit.
		wait = 0
	}
	s.mu.Unlock()
	select {
	case <-s.done:
		return
	case <-time.After(wait):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.attempts {
		if a.worker != nil {
			a.kill(causeStopped, min(a.start.KillAfter, grace))
		}
	}
}

// sync flushes the journal to the disk, so that the results survive a power cut.
func (s *server) sync() {
	if err := s.journal.Sync(); err != nil {
		s.Log.Error("could not flush the result journal to disk", "error", err)
	}
}
