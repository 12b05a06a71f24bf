package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/output"
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

// server is a runner's state.
type server struct {
	root  string // the runners' folder
	dir   string // its own, below root
	log   *slog.Logger
	table *table
	name  string // of this incarnation, in cookies

	mu       sync.Mutex
	epoch    int64
	conn     *conn // the newest service's, nil while it is away
	attempts map[wire.Lease]*attempt
	waiting  []*attempt // START order
	slots    [maxSlots + 1]bool
	stuck    []wire.Attempt // ended, but not gone: each keeps its slot
	live     int            // workers that run or wait
	target   int
	delay    time.Duration // that results are gathered for; Setup says
	closing  bool          // ends once nothing runs
	journal  *journal
	idleAt   time.Time  // since when nobody needs the runner
	more     *sync.Cond // waiting, target or closing changed
	ended    chan struct{}
	workers  sync.WaitGroup
	threads  int // that the Go runtime has been asked to make
}

// attempt is one START. Its fields are guarded by the server's mu.
type attempt struct {
	start   *wire.Start
	log     *output.Log
	worker  *process.Worker // while it runs
	slot    int64
	pid     int
	at      int64
	watched bool
	killed  func() // asked for between the claim of a worker and the fork
	result  []byte // its frame, once ended
	segment int    // of the journal
}

// Serve is the runner process. It makes its folder below root and serves until
// ctx ends, a service says Bye, or nobody has needed it for idleExit; then it
// ends what runs and keeps the results in its journal. ready is called once the
// socket takes connections. alone says that it runs one job only.
func Serve(ctx context.Context, root, version string, alone bool, log *slog.Logger, ready func(dir string)) error {
	pid := os.Getpid()
	s := &server{
		root: root, log: log,
		name:     fmt.Sprintf("%d.%x", pid, time.Now().UnixNano()),
		attempts: map[wire.Lease]*attempt{},
		idleAt:   time.Now(),
		ended:    make(chan struct{}),
	}
	if alone {
		s.name += loneSuffix
	}
	s.more = sync.NewCond(&s.mu)
	s.dir = filepath.Join(root, s.name)
	if err := os.MkdirAll(filepath.Join(root, outputsName), 0o700); err != nil {
		return fmt.Errorf("make the outputs' folder: %w", err)
	}
	lock, listener, err := s.setUp(pid)
	if err != nil {
		return err
	}
	defer lock.Close()
	ready(s.dir)

	var loops sync.WaitGroup
	loops.Go(func() { s.accept(listener, version) })
	loops.Go(func() { s.house() })
	select {
	case <-ctx.Done():
		s.stopAll()
		<-s.ended
	case <-s.ended:
	}
	listener.Close()
	s.workers.Wait()
	loops.Wait()
	return s.leave()
}

// setUp makes the runner's folder: lock first, so that nobody takes it for a
// dead one's, and socket last.
func (s *server) setUp(pid int) (*os.File, net.Listener, error) {
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make the runner's folder: %w", err)
	}
	lock, ok, err := lockFile(filepath.Join(s.dir, lockName))
	if err != nil || !ok {
		return nil, nil, errors.Join(errors.New("the runner's lock is taken"), err)
	}
	boot, err := process.BootID()
	if err != nil {
		return nil, nil, err
	}
	if err := os.WriteFile(filepath.Join(s.dir, bootName), []byte(boot), 0o600); err != nil {
		return nil, nil, fmt.Errorf("note the boot: %w", err)
	}
	if s.journal, err = openJournal(s.dir); err != nil {
		return nil, nil, err
	}
	if s.table, err = makeTable(s.dir, pid, process.SelfTicks()); err != nil {
		return nil, nil, err
	}
	listener, err := listen(filepath.Join(s.dir, sockName))
	if err != nil {
		return nil, nil, fmt.Errorf("listen: %w", err)
	}
	return lock, listener, nil
}

// leave removes the folder if it holds nothing that the service has not stored.
func (s *server) leave() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.attempts {
		if a.result != nil {
			return s.journal.sync()
		}
	}
	return os.RemoveAll(s.dir)
}

// house does what is due now and then: it reaps orphans, and ends a runner that
// nobody needs.
func (s *server) house() {
	tick := time.NewTicker(houseTime)
	defer tick.Stop()
	for {
		select {
		case <-s.ended:
			return
		case <-tick.C:
		}
		process.Reap()
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

// endIfDone ends a closing runner. The caller holds mu.
func (s *server) endIfDone() {
	if !s.closing || s.busy() {
		return
	}
	select {
	case <-s.ended:
	default:
		close(s.ended)
	}
}

// stopAll ends everything that runs, as if the service had stopped it, and then
// the runner.
func (s *server) stopAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.waiting {
		delete(s.attempts, lease(a))
	}
	s.waiting = nil
	for _, a := range s.attempts {
		if a.worker != nil {
			a.kill(causeStopped, a.start.KillAfter)
		}
	}
	s.close()
}

// causeStopped is the cause of a runner that is told to end by the system. It is
// queue.Stopped, which the service sends as well.
const causeStopped = 5

func lease(a *attempt) wire.Lease { return a.start.Lease }

// setUpWorkers makes as many workers as are wanted. The caller holds mu.
func (s *server) setUpWorkers() {
	for s.live < s.target {
		s.live++
		s.workers.Go(s.work)
	}
	s.more.Broadcast()
}

// work is one worker: it runs waiting attempts until there are too many workers
// or the runner closes.
func (s *server) work() {
	w := process.NewWorker()
	defer w.Close()
	for {
		a := s.next(w)
		if a == nil {
			return
		}
		s.execute(w, a)
	}
}

// next takes the attempt that has waited longest; nil ends the worker.
func (s *server) next(w *process.Worker) *attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	var a *attempt
	for a == nil {
		for len(s.waiting) == 0 && s.live <= s.target && !s.closing {
			s.more.Wait()
		}
		if s.live > s.target || s.closing {
			s.live--
			return nil
		}
		a = s.waiting[0]
		s.waiting = s.waiting[1:]
		if notAfter := a.start.NotAfter; notAfter != 0 && time.Now().UnixMilli() >= notAfter {
			delete(s.attempts, lease(a))
			s.send(&wire.Dropped{Lease: lease(a), Dropped: true}, true)
			a = nil
		}
	}
	a.worker, a.at = w, time.Now().UnixMilli()
	for a.slot = 1; s.slots[a.slot]; a.slot++ {
	}
	s.slots[a.slot] = true
	s.table.begin(a.slot, lease(a), a.at)
	return a
}

// execute runs one attempt and keeps its result.
func (s *server) execute(w *process.Worker, a *attempt) {
	st := a.start
	r := w.Run(&process.Command{
		Argv: st.Argv, Env: append(st.Env, "QUEUECTL_WORKER="+Worker(s.dir, a.slot)),
		Dir: st.Cwd, Umask: int(st.Umask), Stdin: st.Stdin, StdinFile: st.StdinFile,
		Timeout: st.Timeout, IdleTimeout: st.IdleTimeout, KillAfter: st.KillAfter, OutputGrace: st.OutputGrace,
		Background: st.Background, Patience: patience(), Cookie: s.cookie(a), Log: a.log,
		Forked: func(pid int, at time.Time) {
			s.table.forked(a.slot, pid)
			s.mu.Lock()
			defer s.mu.Unlock()
			a.pid, a.at = pid, at.UnixMilli()
			if a.killed != nil {
				a.killed()
			}
		},
		Started: func(int, time.Time) { s.started(a) },
	})
	s.finish(a, &r)
	if r.StuckPID != 0 {
		s.linger(w, a)
	}
}

// cookie marks every process of an attempt.
func (s *server) cookie(a *attempt) string {
	return s.name + "." + strconv.FormatInt(a.start.Seq, 10) + "." + strconv.FormatInt(a.start.Fence, 10)
}

// WorkerID names a worker by its slot.
func WorkerID(slot int64) string { return "w" + strconv.FormatInt(slot, 10) }

// started tells the service of an attempt that still runs, with the next results:
// if it ends meanwhile, both are recorded as one.
func (s *server) started(a *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(&wire.Started{Attempt: known(a)}, a.watched)
}

func known(a *attempt) wire.Attempt {
	return wire.Attempt{Lease: lease(a), Slot: a.slot, PID: int64(a.pid), StartedAt: a.at}
}

// finish keeps a result: in the journal before it is sent, and until it is
// acknowledged.
func (s *server) finish(a *attempt, r *process.Result) {
	failpoint.Hit("runner-ended")
	f := &wire.Result{
		EndedAt: r.EndedAt.UnixMilli(), Cause: int64(r.Cause), TimedOut: r.TimedOut, Silent: r.Silent, Shortage: r.Shortage, Unkilled: r.StuckPID != 0,
		ExitCode: r.ExitCode, Signal: int64(r.Signal), Error: r.Error, CPU: r.CPU, PeakRSS: r.PeakRSS,
		Leftovers: int64(r.Leftovers), Dropped: a.log.Dropped(),
	}
	s.keepOutput(a, f)
	f.Attempt = known(a) // which only this worker changes
	result := wire.Append(nil, f)
	segment, err := s.journal.append(result)
	if err != nil {
		s.log.Error("result not in the journal; it is kept in memory", "job", f.Seq, "error", err)
	}
	if r.Spared {
		s.noteSpared(r.PID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a.worker, a.result, a.segment = nil, result, segment
	if s.conn == nil && time.Since(s.idleAt) > awaySync {
		s.sync()
	}
	s.table.end(a.slot)
	s.slots[a.slot] = f.Unkilled
	if f.Unkilled { // told before the result, which else would free the worker
		stuck := known(a)
		stuck.PID = int64(r.StuckPID)
		s.stuck = append(s.stuck, stuck)
		s.send(&wire.Stuck{Attempts: s.stuck}, true)
	}
	s.sendRaw(a.result, a.watched || len(s.waiting) == 0)
	s.endIfDone()
}

func (s *server) noteSpared(pgid int) {
	f, err := os.OpenFile(filepath.Join(s.dir, sparedName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", pgid)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		s.log.Error("background processes not noted; they end with the runner", "error", err)
	}
}

// keepOutput puts the output into the result, or into a file if it is large.
func (s *server) keepOutput(a *attempt, f *wire.Result) {
	if a.log.Kept() == 0 && a.log.Dropped() == 0 {
		return
	}
	if a.log.Kept() <= output.InMemory {
		var err error
		if f.Output, err = a.log.Encode(); err == nil && len(f.Output) <= 4*output.InMemory {
			return
		}
		f.Output = nil
	}
	ref := outputRef(lease(a))
	if err := writeOutput(OutputPath(s.root, ref), a.log); err != nil {
		s.log.Error("output cut short", "job", a.start.Seq, "error", err)
		var kept int64
		f.Output, kept = a.log.EncodeHead(output.InMemory)
		f.Error, f.Dropped = joinText(f.Error, "output cut short: "+err.Error()), f.Dropped+a.log.Kept()-kept
		return
	}
	f.OutputRef = ref
}

func joinText(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// writeOutput writes a log to a file and to the disk: its result will say that
// it is there.
func writeOutput(path string, l *output.Log) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err = errors.Join(l.EncodeTo(f), f.Sync(), f.Close()); err != nil {
		os.Remove(path) // half an output is none
	}
	return err
}

// sync makes the journal survive a power cut. The caller holds mu.
func (s *server) sync() {
	if err := s.journal.sync(); err != nil {
		s.log.Error("journal not on the disk", "error", err)
	}
}
