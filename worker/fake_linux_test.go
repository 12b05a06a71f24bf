package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/memstore"
	"github.com/queuectl/queuectl/worker"
)

// Names in a runner's folder, as package runner has them.
const (
	lockName = "lock"
	sockName = "run.sock"
	bootName = "boot-id"
)

const version = "of the tests"

// patience is how long a test waits for what must come before it fails. Time is
// real here, because the socket is.
const patience = 20 * time.Second

// until waits for a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// from waits for a value, or for the end, of a channel.
func from[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
	}
	return v
}

// fakeRunner is the runner's end of the wire, which runs nothing: it notes what
// it is told, and says what a test has it say.
type fakeRunner struct {
	t        *testing.T
	dir      string
	lock     *os.File
	listener net.Listener
	loops    sync.WaitGroup

	mu     sync.Mutex
	known  wire.Known          // the answer to HELLO
	then   []wire.Frame        // what follows it
	quiet  bool                // a START is not answered with STARTED
	conn   net.Conn            // the newest service's
	epochs []int64             // of every HELLO
	frames []wire.Frame        // all others, in order
	times  []time.Time         // of the frames
	open   map[wire.Lease]bool // started, and neither ended nor dropped
	most   int                 // so many were open at once
	sent   int64               // results of leases that nobody holds
}

// newRunner makes a living runner's folder below root.
func newRunner(t *testing.T, root, name string) *fakeRunner {
	t.Helper()
	f := &fakeRunner{
		t: t, dir: filepath.Join(root, name), open: map[wire.Lease]bool{},
		known: wire.Known{Protocol: wire.Protocol, Version: version, PID: 1},
	}
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.dir, bootName), bytes.TrimSpace(boot), 0o600); err != nil {
		t.Fatal(err)
	}
	if f.lock, err = os.Create(filepath.Join(f.dir, lockName)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	if f.listener, err = net.Listen("unix", filepath.Join(f.dir, sockName)); err != nil {
		t.Fatal(err)
	}
	f.loops.Go(f.accept)
	t.Cleanup(func() {
		f.die()
		f.loops.Wait()
	})
	return f
}

// die ends the runner as its process would: whoever sees the connection end
// finds the lock free.
func (f *fakeRunner) die() {
	f.lock.Close()
	f.listener.Close()
	f.hangUp()
}

// hangUp ends the connection alone.
func (f *fakeRunner) hangUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn != nil {
		f.conn.Close()
	}
}

func (f *fakeRunner) accept() {
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			return // the test has ended, or the runner
		}
		f.loops.Go(func() { f.serve(conn) })
	}
}

func (f *fakeRunner) serve(conn net.Conn) {
	defer conn.Close()
	buf := make([]byte, 1<<16)
	var rest []byte
	for {
		n, err := conn.Read(buf)
		rest = append(rest, buf[:n]...)
		for {
			frame, took, perr := wire.Parse(rest)
			if perr != nil {
				break // the rest of it follows
			}
			rest = rest[took:]
			f.take(conn, frame)
		}
		if err != nil {
			return
		}
	}
}

// take notes a frame and answers what is answered always.
func (f *fakeRunner) take(conn net.Conn, frame wire.Frame) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if hello, ok := frame.(*wire.Hello); ok {
		f.conn = conn
		f.epochs = append(f.epochs, hello.Epoch)
		f.write(append([]wire.Frame{&f.known}, f.then...)...)
		return
	}
	f.frames, f.times = append(f.frames, frame), append(f.times, time.Now())
	switch frame := frame.(type) {
	case *wire.Start:
		f.open[frame.Lease] = true
		f.most = max(f.most, len(f.open))
		if !f.quiet {
			f.write(&wire.Started{Attempt: running(frame.Lease)})
		}
	case *wire.Read:
		f.write(&wire.Chunk{ID: frame.ID, Gone: true})
	case *wire.Bye:
		f.lock.Close() // it ends, since nothing runs
		f.listener.Close()
		conn.Close()
	}
}

// say sends frames in one write, so that they arrive together.
func (f *fakeRunner) say(frames ...wire.Frame) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.write(frames...)
}

// write is say for who holds mu.
func (f *fakeRunner) write(frames ...wire.Frame) {
	var out []byte
	for _, frame := range frames {
		out = wire.Append(out, frame)
		switch frame := frame.(type) {
		case *wire.Result:
			delete(f.open, frame.Lease)
		case *wire.Dropped:
			if frame.Dropped {
				delete(f.open, frame.Lease)
			}
		}
	}
	f.conn.Write(out) // if the service is gone the test sees no answer
}

// heard lists what a runner was sent of one kind, in order.
func heard[F wire.Frame](f *fakeRunner) (list []F) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, frame := range f.frames {
		if frame, ok := frame.(F); ok {
			list = append(list, frame)
		}
	}
	return list
}

// hears waits until a runner has been sent n frames of a kind, and returns the
// n-th and when it came.
func hears[F wire.Frame](t *testing.T, f *fakeRunner, n int) (frame F, at time.Time) {
	t.Helper()
	until(t, fmt.Sprintf("%d frames %T had come", n, frame), func() bool { return len(heard[F](f)) >= n })
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, each := range f.frames {
		if found, ok := each.(F); ok {
			if n--; n == 0 {
				return found, f.times[i]
			}
		}
	}
	panic("it was there")
}

// started lists the seqs of all STARTs, in order.
func (f *fakeRunner) started() (seqs []int64) {
	for _, s := range heard[*wire.Start](f) {
		seqs = append(seqs, s.Seq)
	}
	return seqs
}

// acked lists the leases of all ACKs, in order, but for those that settled asked for.
func (f *fakeRunner) acked() (leases []wire.Lease) {
	for _, a := range heard[*wire.Ack](f) {
		for _, l := range a.Leases {
			if l.Seq < nobodys {
				leases = append(leases, l)
			}
		}
	}
	return leases
}

func (f *fakeRunner) mostOpen() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most
}

// keepsQuiet has STARTs answered with nothing from now on: as by a runner whose
// workers are all busy.
func (f *fakeRunner) keepsQuiet() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.quiet = true
}

// nobodys and the seqs above it belong to no job.
const nobodys = 1 << 40

// settled waits until the pool has dealt with all that it was told before and
// has claimed what it would claim for it. It does so by results that nobody
// waits for: each is acknowledged in a turn after those of all that came before,
// and the second in a turn after the claims of the first.
func (f *fakeRunner) settled() {
	f.t.Helper()
	for range 2 {
		f.mu.Lock()
		f.sent++
		l := wire.Lease{Seq: nobodys + f.sent, Fence: 1}
		f.write(&wire.Result{Attempt: wire.Attempt{Lease: l}})
		f.mu.Unlock()
		until(f.t, "the pool had settled", func() bool {
			return slices.ContainsFunc(heard[*wire.Ack](f), func(a *wire.Ack) bool { return slices.Contains(a.Leases, l) })
		})
	}
}

// running is the attempt of a lease, and pid its process.
func running(l wire.Lease) wire.Attempt {
	return wire.Attempt{Lease: l, Slot: 1, PID: pid(l.Seq), StartedAt: 1_800_000_000_000}
}

func pid(seq int64) int64 { return 1000 + seq }

// ran is the result of an attempt that ran so long and went well.
func ran(l wire.Lease, took time.Duration) *wire.Result {
	a := running(l)
	return &wire.Result{Attempt: a, EndedAt: a.StartedAt + took.Milliseconds()}
}

// long is a run time that makes no block worth having.
const long = time.Minute

// hub is a store whose turns are noted, and can be held up and refused.
type hub struct {
	*memstore.Store
	t *testing.T

	mu     sync.Mutex
	turns  []store.Turn // that were taken
	awaits []int        // what every Await wanted
	refuse func(store.Turn) error
	gate   chan struct{} // a turn that brings an end waits until it is closed
	inside bool          // one waits
}

func newStore(t *testing.T) *hub {
	s := &hub{Store: memstore.New(queue.Order{Scheduling: queue.ByPriority}), t: t}
	t.Cleanup(func() { s.Close() })
	return s
}

// Turn implements store.Leaser.
func (s *hub) Turn(ctx context.Context, turn store.Turn) (store.Turned, error) {
	s.mu.Lock()
	gate, refuse := s.gate, s.refuse
	if gate != nil && len(turn.Ended) > 0 {
		s.inside = true
		s.mu.Unlock()
		<-gate
		s.mu.Lock()
	}
	s.mu.Unlock()
	if refuse != nil {
		if err := refuse(turn); err != nil {
			return store.Turned{}, err
		}
	}
	done, err := s.Store.Turn(ctx, turn)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turns = append(s.turns, turn)
	return done, err
}

// Await implements store.Leaser.
func (s *hub) Await(ctx context.Context, want int) ([]queue.Job, error) {
	s.mu.Lock()
	s.awaits = append(s.awaits, want)
	s.mu.Unlock()
	return s.Store.Await(ctx, want)
}

// awaited is what the Await under way wants, or the last one did; 0 before any.
func (s *hub) awaited() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.awaits) == 0 {
		return 0
	}
	return s.awaits[len(s.awaits)-1]
}

// refuses has turns answered with an error if there is one for them.
func (s *hub) refuses(refuse func(store.Turn) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = refuse
}

// holdUp makes turns that bring an end wait, until release.
func (s *hub) holdUp() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gate := make(chan struct{})
	s.gate = gate
	release = sync.OnceFunc(func() {
		s.mu.Lock()
		s.gate = nil
		s.mu.Unlock()
		close(gate)
	})
	s.t.Cleanup(release) // a test that fails must not hang
	return release
}

func (s *hub) holdsOne() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inside
}

// endings is how often an end, a release and a cancellation of a job was told.
func (s *hub) endings(seq int64) (ended, released, cancelled int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, turn := range s.turns {
		for _, e := range turn.Ended {
			if e.Lease.Seq == seq {
				ended++
			}
		}
		for _, l := range turn.Released {
			if l.Seq == seq {
				released++
			}
		}
		for _, c := range turn.Cancelled {
			if c.Lease.Seq == seq {
				cancelled++
			}
		}
	}
	return ended, released, cancelled
}

// put enqueues jobs of these priorities in one request; their seqs count on
// from 1.
func (s *hub) put(priorities ...int64) {
	s.t.Helper()
	var drafts []queue.Job
	for _, p := range priorities {
		drafts = append(drafts, queue.Job{
			Priority: p, MaxAttempts: 1, ExitCode: -1,
			Terms: queue.Terms{Argv: []string{"true"}, KillAfter: 3 * time.Second},
		})
	}
	if _, err := s.Enqueue(context.Background(), store.Request{Drafts: drafts}); err != nil {
		s.t.Fatal(err)
	}
}

// job reads a job.
func (s *hub) job(seq int64) queue.Job {
	s.t.Helper()
	j, err := s.Get(context.Background(), fmt.Sprint(seq))
	if err != nil {
		s.t.Fatal(err)
	}
	return j
}

// is checks the state and reason of a job.
func (s *hub) is(seq int64, state queue.State, reason queue.Reason) {
	s.t.Helper()
	if j := s.job(seq); j.State != state || j.Reason != reason {
		s.t.Errorf("job %d: got %s, reason %q, want %s, reason %q", seq, j.State, j.Reason, state, reason)
	}
}

// becomes waits until a job is in a state.
func (s *hub) becomes(seq int64, state queue.State) {
	s.t.Helper()
	until(s.t, fmt.Sprintf("job %d was %s", seq, state), func() bool { return s.job(seq).State == state })
}

// leased is which jobs are leased, by seq.
func (s *hub) leased() (seqs []int64) {
	s.t.Helper()
	jobs, err := s.Leased(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, j := range jobs {
		seqs = append(seqs, j.Seq)
	}
	return seqs
}

// run runs a pool until the test ends, and returns it once it is ready.
func run(t *testing.T, s store.Leaser, root string, workers int) *worker.Pool {
	t.Helper()
	var ended <-chan error
	t.Cleanup(func() { // after the one that ends the pool
		if ended == nil {
			return // it never ran
		}
		if err := <-ended; err != nil {
			t.Errorf("the pool ended: got error %v, want none", err)
		}
	})
	var p *worker.Pool
	p, ended = runUnsure(t, s, root, workers)
	return p
}

// runUnsure is run for a pool that may end with an error, which it tells.
func runUnsure(t *testing.T, s store.Leaser, root string, workers int) (*worker.Pool, <-chan error) {
	t.Helper()
	logs, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	p := worker.New(s, worker.Config{
		Root: root, Version: version, Node: "here",
		// The runner that the pool spawns, if it must, is the one named second.
		Command:     []string{"/bin/sh", "-c", "echo queuectl runner second >&3"},
		Account:     worker.Account{User: "u", Home: "/", Shell: "/bin/sh"},
		Log:         slog.New(slog.DiscardHandler),
		ErrorLog:    logs,
		Policy:      func() queue.Policy { return queue.Policy{Base: 2, Max: time.Hour} },
		OutputGrace: func() time.Duration { return time.Second },
		SettleDelay: func() time.Duration { return 0 },
		HeardEvery:  func() time.Duration { return time.Hour },
		StaleAfter:  func() time.Duration { return time.Hour },
	}, workers)
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	var loop sync.WaitGroup
	loop.Go(func() { ended <- p.Run(ctx, func() { close(ready) }) })
	t.Cleanup(func() {
		cancel()
		loop.Wait()
		logs.Close()
	})
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("the pool ended before it was ready: %v", err)
	case <-time.After(patience):
		t.Fatal("the pool is not ready")
	}
	return p, ended
}

// check compares two values.
func check(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}
