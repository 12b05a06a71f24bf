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

// How long a runner stays when nobody needs it, and when the journal of one
// whose service is away is made to survive a power cut.
const (
	idleExit  = 30 * time.Second
	awaySync  = time.Second
	houseTime = 30 * time.Second // between looks for orphans
)

// Options are how a runner is started.
type Options struct {
	Root    string // the runners' folder
	Tmpdir  string // job_tmpdir: holds the private directories of jobs; "" is a directory below Root
	Version string
	Alone   bool // it runs one job only
	// Service is the uid that it obeys beside its own and root's.
	Service int
	// Policy, if not "", is the file that says whose jobs it may run: it is root's
	// runner, and each job is run by the account that START names.
	Policy string
	// Credentials are those that its jobs may have, by name, where it was root's and has become
	// their account.
	Credentials map[string][]byte
	// Watchdog is the command that makes this program a watchdog.
	Watchdog []string
	// Unwanted, if not nil, says whether the system has stopped the service for good.
	// It is asked while the service is away.
	Unwanted func() bool
	// Ending, if not nil, is called again and again while the runner ends because it
	// was told to, but lets something finish.
	Ending func()
	// Cgroups, if not nil, are for what it runs.
	Cgroups *process.Cgroups
	Log     *slog.Logger
	// Ready is called once the socket takes connections.
	Ready func(dir string)
}

// server is a runner's state.
type server struct {
	Options
	dir      string // its own, below Root
	shared   bool   // the group of Root may read what is in it
	place    string // of the private folders of attempts
	table    *table
	name     string    // of this incarnation, in cookies
	accounts *Accounts // nil unless it is root's
	watchdog *watchdog // the same
	socket   *socket

	mu        sync.Mutex
	epoch     int64
	conn      *conn // the newest service's, nil while it is away
	attempts  map[wire.Lease]*attempt
	waiting   []*attempt         // START order
	slots     [maxSlots + 1]int8 // why each is taken: its attempt runs, outlives SIGKILL, or is in no journal
	room      int                // slots that have their place on the disk
	starved   bool               // a worker waits for a slot
	unkept    int                // results that could not be written to the journal
	stuck     []wire.Attempt     // ended, but not gone: each keeps its slot
	live      int                // workers that run or wait
	running   int                // attempts that a worker has
	target    int
	delay     time.Duration // that results are gathered for; Setup says
	finish    time.Duration // that running attempts get when the system ends the runner
	ran       bool          // something was started
	closing   bool          // ends once nothing runs
	dismissed bool          // the service wants nothing of it any more, its folder neither
	journal   *journal
	chores    chores        // what waits for a disk, and so is done without mu
	sweeper   sweeper       // removes folders of attempts
	folders   int           // that there have been names for
	rests     *time.Timer   // has workers look whether to rest theirs; nil before the first
	idleAt    time.Time     // since when nobody needs the runner
	until     time.Time     // it goes on up to then, zero for ever
	untilBoot time.Duration // the same since the machine's boot; 0 is not known
	lapse     *time.Timer   // ends what runs then; nil before the first
	guard     *watchdog     // that ends this process then if it stands still, nil while there is none
	guarded   bool          // there was one, or none could be started
	forTime   bool          // it has its leases for a time only, as the table says
	leases    chan struct{} // closed once it was told of such a time
	leased    sync.Once     // closes it
	more      *sync.Cond    // waiting, target, slots, forTime, guarded or closing changed
	gone      chan struct{} // closed while the service is away
	orphans   chan struct{} // a hint that an attempt has left orphans
	ended     chan struct{}
	workers   sync.WaitGroup
	unlimited sync.Once // tells that limits are not enforced
	unbounded sync.Once // tells that its memory is not bounded
	threads   int       // that the Go runtime has been asked to make
}

// Serve is the runner process. It makes its folder below the root and serves until
// ctx ends, a service says Shutdown, its folder is removed, or nobody has needed it for
// idleExit; then it ends what runs and keeps the results in its journal.
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
		return fmt.Errorf("check the runner directory: %w", err)
	}
	s.shared = info.Mode()&os.ModeSetgid != 0
	if err := os.MkdirAll(filepath.Join(o.Root, outputsName), s.mode(0o700)); err != nil {
		return fmt.Errorf("create the output directory: %w", err)
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
	s.table.leased(false) // for the watchdog: nothing of it runs
	if err := clearPlace(s.place, time.Now().Add(clearWithin)); err != nil {
		s.Log.Warn("could not remove all private directories of jobs", "error", err)
	}
	return s.leave(lock)
}

// run serves until the runner ends, and everything of it has.
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

// mode is what a file or folder of the runner's has, with what its owner may do: the
// group may read and enter what is shared.
func (s *server) mode(owner os.FileMode) os.FileMode {
	if s.shared {
		return owner | owner>>3&0o050
	}
	return owner
}

// setUp makes the runner's folder: lock first, so that nobody takes it for a
// dead one's, and socket last.
func (s *server) setUp(pid int) (*os.File, error) {
	if err := os.Mkdir(s.dir, s.mode(0o700)); err != nil {
		return nil, fmt.Errorf("create the runner's directory: %w", err)
	}
	lock, err := lockSoon(func() (*os.File, bool, error) { return lockFile(filepath.Join(s.dir, lockName), s.mode(0o600)) })
	if err != nil || lock == nil { // it may be looked at for a moment
		return nil, errors.Join(errors.New("another process holds the runner's lock"), err)
	}
	boot, err := process.BootID()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(s.dir, bootName), []byte(NoteOf(boot)), s.mode(0o600)); err != nil {
		return nil, fmt.Errorf("write the boot ID: %w", err)
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
		os.RemoveAll(s.dir) // what stays is removed as a dead runner's
		return nil, err
	}
	if s.table, err = makeTable(s.dir, s.mode(0o600), pid, process.SelfTicks()); err != nil {
		return nil, err
	}
	if s.journal, err = openJournal(s.dir, s.mode(0o600), s.table.keeps); err != nil {
		return nil, err
	}
	if s.socket, err = listenAt(filepath.Join(s.dir, sockName), s.socketMode()); err != nil {
		return nil, fmt.Errorf("listen on the runner's socket: %w", err)
	}
	return lock, nil
}

// socketMode is the mode of the socket: the group must write to it to connect.
func (s *server) socketMode() os.FileMode {
	if s.shared {
		return 0o660
	}
	return 0o600
}

// leave removes the folder if the service has dismissed the runner. Else it stays, for
// the next service to see that all was stored, or what was not.
func (s *server) leave(lock *os.File) error {
	if held, dismissed := s.holds(); held || !dismissed {
		return s.journal.sync()
	}
	return errors.Join(s.journal.close(), s.table.close(), remove(s.dir, lock))
}

// holds reports whether the runner has results that the service has not stored, and
// whether the service has dismissed it.
func (s *server) holds() (results, dismissed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.attempts {
		results = results || a.result != nil
	}
	return results, s.dismissed
}

// remove removes a runner's own folder, the lock last: whoever looks meanwhile must not
// take the runner for a dead one, whose notes they would read while they go.
func remove(dir string, lock *os.File) error {
	list, err := os.ReadDir(dir)
	for _, e := range list {
		if e.Name() != lockName {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, removeLocked(dir, lock))
}

// unwantedLook is the time between questions whether the service is stopped for good.
// Two in a row must say so.
const unwantedLook = 2 * time.Second

// watchUnit has the runner end once the system has stopped the service without telling
// it: while the service was dead.
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

// away is closed while the service is away.
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

// notice notes that the service has come or gone. The caller holds mu.
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

// endingEvery is the time between two signs that the runner is about to end.
const endingEvery = 10 * time.Second

// sayEnding tells the system that the runner has more to do before it ends.
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

// reapPause is the time between two looks for orphans while some end.
const reapPause = 100 * time.Millisecond

// reap reaps the orphans that have ended, and returns when to look again: nil if none is left.
func (s *server) reap() (again <-chan time.Time) {
	if process.Reap() {
		return time.After(reapPause)
	}
	return nil
}

// housekeep does what is due now and then: it reaps orphans, also soon after an attempt that left
// some, and ends a runner that is not needed.
func (s *server) housekeep() {
	tick := time.NewTicker(houseTime)
	defer tick.Stop()
	var again <-chan time.Time // while orphans may still end
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

// close ends the runner as soon as nothing runs. The caller holds mu.
func (s *server) close() {
	if !s.closing {
		s.closing = true
		s.more.Broadcast()
	}
	s.endIfDone()
}

// over reports whether the runner ends now. The caller holds mu.
func (s *server) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// endIfDone ends a closing runner. The caller holds mu.
func (s *server) endIfDone() {
	if s.closing && !s.busy() && !s.over() {
		close(s.ended)
	}
}

// stopAll lets what runs finish, if this is a unit of the system and the service is away,
// for as long as that said; then it ends everything that runs, with no more grace than this, as if the service had stopped
// it, and then the runner.
func (s *server) stopAll(grace time.Duration) {
	s.mu.Lock()
	for _, a := range s.waiting {
		s.forgo(a)
	}
	s.waiting = nil
	s.close()
	finish := s.finish
	if s.conn != nil || s.Unwanted == nil {
		finish = 0 // it is the service that lets jobs finish, or nobody asked for that
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

// sync makes the journal survive a power cut.
func (s *server) sync() {
	if err := s.journal.sync(); err != nil {
		s.Log.Error("could not flush the result journal to disk", "error", err)
	}
}
