package runner

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
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// idleExit is how long a runner without a service and without jobs waits before it ends. awaySync is
// how long after its service has disconnected a runner flushes its journal to the disk, so that the
// results survive a power cut.
const (
	idleExit  = 30 * time.Second
	awaySync  = time.Second
	houseTime = 30 * time.Second // between two rounds of housekeep
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
	// Ending is called every endingEvery while the runner shuts down after ctx has ended and still
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
	dir      string // the runner's own directory, below Root
	shared   bool   // the group of Root may read the runner's files
	place    string // contains the private directories of attempts
	table    *table
	name     string    // unique name of this runner; also the prefix of its jobs' cookies
	accounts *Accounts // nil unless the runner runs as root
	watchdog *watchdog // nil unless the runner runs as root
	socket   *socket

	mu       sync.Mutex
	epoch    int64
	conn     *conn // connection to the service with the newest epoch; nil while none is connected
	attempts map[wire.Lease]*attempt
	waiting  []*attempt // attempts that no worker has started, in start order
	// slots counts why each slot of the running table is taken: its attempt runs, has processes that
	// outlive SIGKILL, or has a result that is not in the journal. A slot with count 0 is free.
	slots   [maxSlots + 1]int8
	room    int            // slots that have disk space reserved in the running table
	starved bool           // a worker waits for a free slot
	unkept  int            // number of results that could not be written to the journal
	stuck   []wire.Attempt // ended attempts with processes that outlive SIGKILL; each keeps its slot
	live    int            // workers, running or idle
	running int            // attempts that are running on a worker
	target  int
	delay   time.Duration // how long results are gathered before they are sent; set by a SETUP frame
	// finish is how long running attempts may continue when the operating system ends the runner while
	// no service is connected. A SETUP frame sets it.
	finish    time.Duration
	ran       bool // the runner has accepted at least one attempt
	closing   bool // the runner ends once no attempt is left to run
	dismissed bool // the service sent SHUTDOWN and does not need the runner's directory any more
	journal   *journal
	chores    chores        // disk operations, which must not run while mu is held
	sweeper   sweeper       // removes the private directories of ended attempts
	folders   int           // number of private directory names handed out
	rests     *time.Timer   // makes idle workers remove their private directories; nil before its first use
	idleAt    time.Time     // time since when the runner has had no service and no running attempts
	until     time.Time     // end of the service's leases; zero if they do not expire
	untilBoot time.Duration // the same, as time since boot; 0 if unknown
	lapse     *time.Timer   // runs lookLapsed when the leases expire; nil before its first use
	// guard is the watchdog that kills this process if it hangs when the leases expire. It is nil while
	// no such watchdog runs.
	guard     *watchdog
	guarded   bool          // guard is running, or could not be started
	forTime   bool          // the leases are limited in time; also stored in the running table
	leases    chan struct{} // closed once the service has sent a lease with an end
	leased    sync.Once     // closes leases
	more      *sync.Cond    // signals changes of waiting, target, slots, forTime, guarded and closing
	gone      chan struct{} // closed while no service is connected
	orphans   chan struct{} // receives a hint that an attempt may have left orphans
	ended     chan struct{}
	workers   sync.WaitGroup
	unlimited sync.Once // logs once that limits are not enforced
	unbounded sync.Once // logs once that the runner's own memory is not limited
	threads   int       // number of threads that the Go runtime was made to create
}

// Serve runs a runner process. It creates the runner's directory below Root. It serves until ctx ends,
// the service sends Shutdown, the directory is removed, or the runner has been idle for idleExit.
// Before it returns, it ends the running jobs and stores their results in the journal.
func Serve(ctx context.Context, o Options) error {
	pid := os.Getpid()
	s := &server{
		Options:  o,
		name:     fmt.Sprintf("%d.%x", pid, time.Now().UnixNano()),
		attempts: map[wire.Lease]*attempt{},
		idleAt:   time.Now(),
		ended:    make(chan struct{}),
		gone:     make(chan struct{}),
		orphans:  make(chan struct{}, 1),
		leases:   make(chan struct{}),
	}
	close(s.gone)
	if o.Alone {
		s.name += isolatedSuffix
	}
	if o.Policy != "" {
		s.accounts = &Accounts{Policy: o.Policy, Service: o.Service, Directory: &accounts.Directory{Patient: true}}
	}
	s.more = sync.NewCond(&s.mu)
	s.dir = filepath.Join(o.Root, s.name)
	info, err := os.Stat(o.Root)
	if err != nil {
		return fmt.Errorf("cannot check the runner directory: %w", err)
	}
	s.shared = info.Mode()&os.ModeSetgid != 0
	if err := os.MkdirAll(filepath.Join(o.Root, outputsName), s.mode(0o700)); err != nil {
		return fmt.Errorf("cannot create the output directory: %w", err)
	}
	lock, err := s.setUp(pid)
	if err != nil {
		return err
	}
	defer lock.Close()
	s.sweeper.init(s.Log)
	s.chores.bell = make(chan struct{}, 1)
	if s.accounts != nil {
		if s.watchdog, err = startWatchdog(o.Watchdog, s.dir, true, s.Log); err != nil {
			return err
		}
		defer s.watchdog.end()
		s.guard, s.guarded = s.watchdog, true
	}
	o.Ready(s.dir)

	s.run(ctx)
	s.table.leased(false) // shows the watchdog that no jobs are left to end
	if err := clearPlace(s.place, time.Now().Add(clearWithin)); err != nil {
		s.Log.Warn("could not remove all private directories of jobs", "error", err)
	}
	return s.leave(lock)
}

// run serves until the runner ends and all its goroutines have returned.
func (s *server) run(ctx context.Context) {
	var loops sync.WaitGroup
	loops.Go(s.accept)
	loops.Go(s.housekeep)
	loops.Go(func() { s.chores.run(s.ended) })
	loops.Go(func() { s.sweeper.run(s.ended) })
	if s.watchdog == nil {
		loops.Go(s.watchLeases)
	}
	guarding, unguard := context.WithCancel(context.Background())
	vanished := make(chan struct{})
	loops.Go(func() {
		if s.socket.guard(guarding, s.Log) {
			close(vanished)
		}
	})
	stop := make(chan struct{}, 1)
	if s.Unwanted != nil {
		loops.Go(func() { s.watchUnit(stop) })
	}
	select {
	case <-ctx.Done():
		if s.Ending != nil {
			loops.Go(s.sayEnding)
		}
		s.stopAll(GraceOf(ctx))
		<-s.ended
	case <-stop:
		s.stopAll(StopGrace())
		<-s.ended
	case <-vanished:
		s.Log.Error("this runner's directory was removed, so no service can find this runner; ending the runner and its jobs", "dir", s.dir)
		s.stopAll(StopGrace())
		<-s.ended
	case <-s.ended:
	}
	unguard()
	s.socket.close()
	s.workers.Wait()
	loops.Wait()
}

// mode returns the mode of a file or directory of the runner, given the owner's permissions. If the
// runner's directory is shared, the group gets the owner's permissions to read and enter.
func (s *server) mode(owner os.FileMode) os.FileMode {
	if s.shared {
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
	lock, err := lockSoon(func() (*os.File, bool, error) { return lockFile(filepath.Join(s.dir, lockName), s.mode(0o600)) })
	if err != nil || lock == nil { // a service that checks the lock holds it only for a moment
		return nil, errors.Join(errors.New("another process holds the runner's lock"), err)
	}
	boot, err := process.BootID()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(s.dir, bootName), []byte(NoteOf(boot)), s.mode(0o600)); err != nil {
		return nil, fmt.Errorf("cannot write the boot ID: %w", err)
	}
	if s.Tmpdir != "" {
		note := filepath.Join(s.dir, tmpdirName)
		err := os.WriteFile(note, []byte(NoteOf(s.Tmpdir)), s.mode(0o600))
		if err = errors.Join(err, syncFolder(note)); err != nil {
			return nil, err
		}
	}
	if s.place, err = makePlace(&s.Options, s.name, s.accounts != nil); err != nil {
		lock.Close()
		os.RemoveAll(s.dir) // if something remains, it is removed later, like the directory of a dead runner
		return nil, err
	}
	if s.table, err = makeTable(s.dir, s.mode(0o600), pid, process.SelfTicks()); err != nil {
		return nil, err
	}
	if s.journal, err = openJournal(s.dir, s.mode(0o600), s.table.keeps); err != nil {
		return nil, err
	}
	if s.socket, err = listenAt(filepath.Join(s.dir, sockName), s.socketMode()); err != nil {
		return nil, fmt.Errorf("cannot listen on the runner's socket: %w", err)
	}
	return lock, nil
}

// socketMode returns the mode of the socket. A client needs write permission to connect.
func (s *server) socketMode() os.FileMode {
	if s.shared {
		return 0o660
	}
	return 0o600
}

// leave removes the runner's directory if the service has dismissed the runner and has stored all its
// results. Otherwise the directory stays, so that the next service can read the results from it.
func (s *server) leave(lock *os.File) error {
	if held, dismissed := s.holds(); held || !dismissed {
		return s.journal.sync()
	}
	return errors.Join(s.journal.close(), s.table.close(), remove(s.dir, lock))
}

// holds reports whether the runner has results that the service has not acknowledged, and whether the
// service has dismissed the runner.
func (s *server) holds() (results, dismissed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.attempts {
		results = results || a.result != nil
	}
	return results, s.dismissed
}

// remove removes a runner's own directory, and in it the lock file last. Without the lock, a service
// would consider the runner dead and read its files while they are being removed.
func remove(dir string, lock *os.File) error {
	list, err := os.ReadDir(dir)
	for _, e := range list {
		if e.Name() != lockName {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, removeLocked(dir, lock))
}

// unwantedLook is the time between two calls of Unwanted. The runner ends after two successive calls
// that return true.
const unwantedLook = 2 * time.Second

// watchUnit ends the runner once the operating system has stopped the service for good. This matters if
// the service was not running then, and so could not send Shutdown to the runner.
func (s *server) watchUnit(stop chan<- struct{}) {
	tick := time.NewTicker(unwantedLook)
	defer tick.Stop()
	for seen := 0; ; {
		select {
		case <-s.ended:
			return
		case <-s.away():
		}
		select {
		case <-s.ended:
			return
		case <-tick.C:
		}
		if s.isAway() && s.Unwanted() {
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

// away returns a channel that is closed while no service is connected.
func (s *server) away() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

func (s *server) isAway() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn == nil
}

// notice updates gone after a service has connected or disconnected. The caller holds mu.
func (s *server) notice() {
	select {
	case <-s.gone:
		if s.conn != nil {
			s.gone = make(chan struct{})
		}
	default:
		if s.conn == nil {
			close(s.gone)
		}
	}
}

// endingEvery is the time between two calls of Ending.
const endingEvery = 10 * time.Second

// sayEnding calls Ending repeatedly until the runner ends. Ending reports to the operating system that
// the runner needs more time.
func (s *server) sayEnding() {
	tick := time.NewTicker(endingEvery)
	defer tick.Stop()
	for {
		s.Ending()
		select {
		case <-s.ended:
			return
		case <-tick.C:
		}
	}
}

// reapPause is the time between two checks for ended orphans while some orphans are still running.
const reapPause = 100 * time.Millisecond

// reap reaps orphans that have ended. It returns a channel that delivers when to call reap again, or
// nil if no orphans are left.
func (s *server) reap() (again <-chan time.Time) {
	if process.Reap() {
		return time.After(reapPause)
	}
	return nil
}

// housekeep performs periodic work every houseTime: it reaps orphans, cleans up, and ends a runner that
// has been idle for idleExit. After an attempt that may have left orphans, it reaps them soon.
func (s *server) housekeep() {
	tick := time.NewTicker(houseTime)
	defer tick.Stop()
	var again <-chan time.Time // nil while no orphans are running
	for {
		select {
		case <-s.ended:
			return
		case <-s.orphans:
			again = s.reap()
			continue
		case <-again:
			again = s.reap()
			continue
		case <-tick.C:
		}
		again = s.reap()
		if s.Cgroups != nil {
			s.Cgroups.Sweep()
		}
		s.keepAgain()
		s.sweeper.look(s.place)
		s.mu.Lock()
		if s.conn != nil || s.busy() || len(s.stuck) > 0 {
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
		s.more.Broadcast()
	}
	s.endIfDone()
}

// over reports whether the runner is ending. The caller holds mu.
func (s *server) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// endIfDone ends a closing runner if no attempt is left to run. The caller holds mu.
func (s *server) endIfDone() {
	if s.closing && !s.busy() && !s.over() {
		close(s.ended)
	}
}

// stopAll ends the runner. It drops the waiting attempts. If the runner is a unit of the operating
// system and no service is connected, running attempts first get the time finish to end by themselves.
// Then stopAll ends the running attempts as stopped by the service. An attempt gets at most grace
// between SIGTERM and SIGKILL.
func (s *server) stopAll(grace time.Duration) {
	s.mu.Lock()
	for _, a := range s.waiting {
		s.forgo(a)
	}
	s.waiting = nil
	s.close()
	finish := s.finish
	if s.conn != nil || s.Unwanted == nil {
		finish = 0 // a connected service does the waiting itself; without a unit, nothing asked for it
	}
	s.mu.Unlock()
	select {
	case <-s.ended:
		return
	case <-time.After(finish):
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
	if err := s.journal.sync(); err != nil {
		s.Log.Error("could not flush the result journal to disk", "error", err)
	}
}
