// Package worker claims jobs, has them run, and settles them.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// A block of claimed jobs holds this much work at most, by the mean of recent
// runs; what has not started after staleAfter is given back, so that a job of
// higher rank waits no longer.
const (
	blockWork  = 20 * time.Millisecond
	maxBlock   = 64
	staleAfter = 50 * time.Millisecond
)

// Limits and waits of the pool.
const (
	MaxWorkers   = 4096
	retryFirst   = 100 * time.Millisecond // after a store error that passes
	retryLast    = 5 * time.Second
	pauseFirst   = time.Second // after a shortage of our own
	pauseLast    = 30 * time.Second
	heardWithin  = 200 * time.Millisecond // a living runner answers in
	purgedWithin = time.Second            // what upkeep waits for deletions; those that were too slow are asked for again

	// startBy is how long a runner has to begin an attempt that it was sent. One that is
	// not begun by then never is, so that a runner that hangs holds it no longer.
	startBy = 5 * time.Second
)

// Config is what a pool needs to know. Its functions are asked at each use.
type Config struct {
	Runners runner.Home
	Version string
	Node    string
	Socket  string // the service's, told to jobs
	Account Account
	Log     *slog.Logger

	Policy      func() queue.Policy
	StopTimeout func() time.Duration
	OutputGrace func() time.Duration
	SettleDelay func() time.Duration
	Disowned    func(*queue.Job) error // why a job may not start: a uid of it belongs to another account now; must not wait long
	EndHung     func(pid int64) string // what a person can do about a runner that hangs
	HeardEvery  func() time.Duration   // a worker not heard for so long is asked
	StaleAfter  func() time.Duration   // one not heard for so long is stale
}

// Account is whom jobs run as. With Each a runner of root's gives each job its own.
type Account struct {
	User, Home, Shell string
	UID               int
	Each              bool
}

// RunsAs is the uid that a job runs as: with Each that of whom it names, or else of who
// enqueued it.
func (a *Account) RunsAs(j *queue.Job) int {
	switch {
	case !a.Each:
		return a.UID
	case j.AsUID != nil:
		return *j.AsUID
	}
	return j.UID
}

// Pool runs jobs on a number of workers. Make it with New, run it with Run; all
// other methods may be called from any goroutine while Run runs.
type Pool struct {
	store store.Session
	cfg   Config

	inbox  chan delivery
	found  chan finding
	grants chan grant
	kick   chan struct{} // something below changed

	mu            sync.Mutex                   // guards all that follows, but for what is Run's alone
	target        int                          // workers wanted
	stopping      bool                         // claim nothing more
	draining      bool                         // claim nothing until that is over
	clients       []*runnerConn                // the last one takes new jobs
	contacts      map[string]*contact          // runners that are not connected, by folder
	spawning      bool                         // a runner for new jobs is being started
	spawnErr      error                        // why none could be, the last time
	spawningAlone bool                         // a runner for a suspect is being started
	connected     chan struct{}                // closed, and made anew, when a runner is connected
	leases        map[queue.Lease]*leaseState  // every lease of this service
	bySeq         map[int64]*leaseState        // the same
	watched       map[int64]int                // seqs whose end somebody waits for
	ended         chan struct{}                // closed, and made anew, when a lease comes to its end
	rate          rate                         // of ends
	owners        map[int]*owner               // users whose starts have hung, by uid
	seeking       bool                         // leases of which no runner knows are looked for
	rebooted      bool                         // a dead runner was of an earlier boot
	unsure        []string                     // folders that are gone or damaged, of runners that may have leases
	paused        time.Time                    // claim nothing until then
	short         shortage                     // of the machine's resources
	unheld        []remark                     // about jobs that no runner knew
	pending       store.Report                 // to be recorded
	stored        []func()                     // to be done once what is pending is recorded
	acks          map[*runnerConn][]wire.Lease // to be sent once recorded

	waiting bool               // an Await is under way; Run's
	awaited int                // the workers there were when it began; Run's
	cancel  context.CancelFunc // of that Await; Run's
	mean    time.Duration      // of recent runs; Run's
	retry   time.Duration      // Run's
	due     time.Time          // of the next retry; Run's
	noted   []string           // the runners that the store knows of; Run's
	lastSeq int64              // of the jobs that were there at the start; Run's, before it contacts anybody
	moved   bool               // the store is a copy; Run's
	missing bool               // the folder of one that it knew of was not there; Run's

	alonePause time.Duration // after a suspect could not be started; Run's
	aloneAfter time.Time     // no suspect is started before; Run's
	putOffTo   time.Time     // when the suspect that was put off last comes back; Run's
}

// runnerConn is a runner that is connected. Its fields are guarded by the pool's mu, but for
// gone.
type runnerConn struct {
	*runner.Client
	current   bool
	heard     time.Time // last, or asked in vain: it is asked again after a while
	lived     time.Time // heard last
	asking    bool      // whether it lives
	silent    bool      // it does not answer
	gone      chan struct{}
	dismissed bool           // told to end, for it has run what it was for
	owner     *owner         // whose jobs alone it runs, nil if it is for all
	stuck     []wire.Attempt // that take its workers
	set       wire.Setup     // what it was told last
}

// leaseState is a lease of this service. Its fields are guarded by the pool's mu.
type leaseState struct {
	job     queue.Job
	conn    *runnerConn // nil while its runner is not connected, or not known
	dir     string      // the runner's folder, "" if not known
	waiting bool        // for a runner of its own, which is being started: it was sent to none
	sent    time.Time   // to the runner
	asked   bool        // a DROP is under way
	heard   time.Time   // its runner, last, while that is not connected
	running bool        // STARTED was heard, or the runner said so
	begun   bool        // a DROP came too late: it runs, or has ended
	worker  string
	pid     int
	at      queue.Millis
	end     *queue.End // why we end it, if we do
	grace   time.Duration
	by      *int             // who had us end it, nil if nobody did
	verb    string           // and how
	over    bool             // its end, or return, is in pending
	asks    []*pendingChange // what is asked of it, if it has not started; the first goes first
	started chan struct{}    // closed once it is known to run
	done    chan struct{}    // closed once it is settled or given back
}

// pendingChange is a change that somebody waits for.
type pendingChange struct {
	store.Change
	answer chan error // has room for one
}

// told answers, once.
func (a *pendingChange) told(err error) { a.answer <- err }

type delivery struct {
	from   *runnerConn
	frames []wire.Frame // nil: the connection has ended
}

type grant struct {
	jobs []queue.Job
	err  error
}

// New makes a pool of workers.
func New(s store.Session, cfg Config, workers int) *Pool {
	return &Pool{
		store: s, cfg: cfg, target: workers,
		inbox:     make(chan delivery, 64),
		found:     make(chan finding, 64),
		grants:    make(chan grant, 1),
		kick:      make(chan struct{}, 1),
		contacts:  map[string]*contact{},
		connected: make(chan struct{}),
		leases:    map[queue.Lease]*leaseState{},
		bySeq:     map[int64]*leaseState{},
		watched:   map[int64]int{},
		owners:    map[int]*owner{},
		ended:     make(chan struct{}),
		acks:      map[*runnerConn][]wire.Lease{},
		retry:     retryFirst,
		short:     shortage{pause: pauseFirst},

		alonePause: pauseFirst,
	}
}

// Run adopts what runs, settles what has ended, and then claims and runs jobs
// until ctx ends; what runs then goes on in the runner. ready is called when
// what was left has been dealt with, or after adoptWithin: a runner that hangs is
// adopted whenever it answers. An error means that the store or the runners
// cannot be used any more.
func (p *Pool) Run(ctx context.Context, ready func()) error {
	var loops sync.WaitGroup
	defer loops.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := p.takeOver(ctx, &loops); err != nil {
		return err
	}
	p.needsRunner(ctx, &loops)
	err := p.adoptAll(ctx, &loops)
	if err == nil {
		err = p.flush(ctx, &loops)
	}
	if err != nil {
		return endOf(ctx, err)
	}
	p.dismissIdle() // those that were started for a job that never came
	ready()
	for {
		if err := p.step(ctx, &loops); err != nil {
			return endOf(ctx, err)
		}
	}
}

// endOf is nil if ctx has ended: then that is why there was an error.
func endOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// adoptAll waits for what was there when the service started.
func (p *Pool) adoptAll(ctx context.Context, loops *sync.WaitGroup) error {
	within := time.After(adoptWithin)
	for p.adopting() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case f := <-p.found:
			if err := p.foundRunner(ctx, f, loops); err != nil {
				return err
			}
		case d := <-p.inbox:
			p.deliver(ctx, d, loops)
		case <-p.kick:
		case <-within:
			return nil
		}
		p.needsRunner(ctx, loops)
	}
	return nil
}

// step waits for something to happen and deals with it and all else that has
// happened by then, in one turn with the store.
func (p *Pool) step(ctx context.Context, loops *sync.WaitGroup) error {
	if err := p.wait(ctx, loops); err != nil {
		return err
	}
	for more := true; more; {
		select {
		case d := <-p.inbox:
			p.deliver(ctx, d, loops)
		case f := <-p.found:
			if err := p.foundRunner(ctx, f, loops); err != nil {
				return err
			}
		case g := <-p.grants:
			if err := p.granted(ctx, g, loops); err != nil {
				return err
			}
		default:
			more = false
		}
	}
	p.dropStale()
	p.askSilent(ctx, loops)
	p.needsRunner(ctx, loops)
	err := p.flush(ctx, loops)
	p.dismissIdle()
	p.setUp()
	return err
}

// wait waits for something to happen and deals with it.
func (p *Pool) wait(ctx context.Context, loops *sync.WaitGroup) error {
	timer := time.NewTimer(p.nextTimer())
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case d := <-p.inbox:
		p.deliver(ctx, d, loops)
	case f := <-p.found:
		return p.foundRunner(ctx, f, loops)
	case g := <-p.grants:
		return p.granted(ctx, g, loops)
	case <-p.kick:
	case <-timer.C:
	}
	return nil
}

// nextTimer is how long nothing may happen before something is due.
func (p *Pool) nextTimer() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := time.Hour
	now := time.Now()
	for _, h := range p.leases {
		switch {
		case h.running || h.begun || h.over || h.waiting || h.conn == nil:
		case !h.asked:
			wait = min(wait, h.sent.Add(staleAfter).Sub(now))
		default:
			wait = min(wait, max(h.sent.Add(startBy+startSpare).Sub(now), time.Second))
		}
	}
	for _, c := range p.contacts { // then another runner is needed
		if left := c.since.Add(againWithin).Sub(now); left > 0 {
			wait = min(wait, left)
		}
	}
	if at := p.nextAsk(); !at.IsZero() {
		wait = min(wait, at.Sub(now))
	}
	at := p.due // until which flush does nothing
	if at.IsZero() {
		at = p.paused
	}
	if !at.IsZero() { // also one that has just passed: flush deals with it
		wait = min(wait, at.Sub(now))
	}
	return max(wait, time.Millisecond)
}

// dropStale asks back what has not started in time, if others may rank higher:
// a runner whose workers are all busy would hold it for long. What its runner does not
// give back, for it hangs, comes back once it is too late to be begun.
func (p *Pool) dropStale() {
	for conn, list := range p.askBack() {
		p.expire(conn, list)
	}
}

// askBack does so but for what hung runners have not begun in time, which it lists.
func (p *Pool) askBack() map[*runnerConn][]*leaseState {
	p.mu.Lock()
	defer p.mu.Unlock()
	drops, late := map[*runnerConn][]wire.Frame{}, map[*runnerConn][]*leaseState{}
	for lease, h := range p.leases {
		switch since := time.Since(h.sent); {
		case h.over || h.running:
		case h.waiting && (h.asked || len(h.asks) > 0):
			p.giveBack(h)
		case h.waiting || h.conn == nil:
		case !h.asked && since >= staleAfter:
			h.asked = true
			drops[h.conn] = append(drops[h.conn], &wire.Drop{Lease: wire.Lease(lease)})
		case h.asked && !h.begun && h.conn.silent && since >= startBy+startSpare:
			late[h.conn] = append(late[h.conn], h)
		}
	}
	for conn, frames := range drops {
		conn.Send(frames...)
	}
	return late
}

// capacity is how many jobs may be claimed now. The caller holds mu.
func (p *Pool) capacity() int {
	if time.Now().Before(p.paused) {
		return 0
	}
	p.paused = time.Time{}
	workers := p.fit()
	if p.stopping || p.draining || workers == 0 || p.current() == nil {
		return 0
	}
	block := 0
	if p.mean > 0 {
		block = min(maxBlock, int(blockWork*time.Duration(workers)/max(p.mean, time.Microsecond)))
		if block < workers {
			block = 0 // jobs longer than the block is worth: exactly the free workers
		}
	}
	if failpoint.On("ahead") {
		block = maxBlock
	}
	return max(0, workers+block-len(p.leases)+p.leaving())
}

// leaving is how many held leases the next turn brings to their end: their room
// is claimed in the same commit. The caller holds mu.
func (p *Pool) leaving() (n int) {
	count := func(lease queue.Lease) {
		if p.leases[lease] != nil {
			n++
		}
	}
	for i := range p.pending.Ended {
		count(p.pending.Ended[i].Lease)
	}
	for _, lease := range p.pending.Released {
		count(lease)
	}
	for i := range p.pending.Changed {
		count(p.pending.Changed[i].Lease)
	}
	return n
}

func (p *Pool) current() *runnerConn {
	if n := len(p.clients); n > 0 && p.clients[n-1].current {
		return p.clients[n-1]
	}
	return nil
}

// flush records what has happened and claims what there is room for, in one
// commit, and then tells the runners.
func (p *Pool) flush(ctx context.Context, loops *sync.WaitGroup) error {
	if time.Now().Before(p.due) {
		return nil
	}
	p.due = time.Time{}
	if err := p.noteRunners(ctx); err != nil {
		return p.storeFailed(err)
	}
	p.mu.Lock()
	capacity, workers := p.capacity(), p.fit()
	turn, then := p.pending, len(p.stored)
	p.mu.Unlock()
	if !p.waiting {
		turn.Want = capacity
	} else if capacity == 0 || workers < p.awaited {
		p.cancel() // else it would claim what there is no room for
	}
	if len(turn.Started)+len(turn.Ended)+len(turn.Released)+len(turn.Changed) > 0 { // else waiting claims as well
		turned, err := p.store.Exchange(context.WithoutCancel(ctx), turn) // it happened: a stop must not lose it
		if err != nil {
			return p.storeFailed(err)
		}
		hitSettled()
		p.retry = retryFirst
		remarks := p.recorded(turn, turned.Refused)
		hitBeforeAck()
		p.startAll(ctx, turned.Jobs, true, loops)
		p.acknowledge()
		p.report(remarks)
		p.afterwards(then, loops)
		capacity -= len(turned.Jobs)
		if turn.Want == 0 || len(turned.Jobs) == turn.Want && len(turned.Jobs) > 0 {
			return nil
		}
	} else {
		p.afterwards(then, loops)
	}
	p.acknowledge() // results that were stored by an earlier service
	if capacity > 0 && !p.waiting {
		p.awaited = workers
		p.await(ctx, capacity, loops)
	}
	return nil
}

// afterwards has the first n things done that waited for what is recorded now.
func (p *Pool) afterwards(n int, loops *sync.WaitGroup) {
	p.mu.Lock()
	list := p.stored[:n]
	p.stored = p.stored[n:]
	p.mu.Unlock()
	for _, do := range list {
		loops.Go(do) // it may be large folders that go
	}
}

// storeFailed keeps what is to be recorded for a later turn, unless the store is
// broken.
func (p *Pool) storeFailed(err error) error {
	if passes(err) {
		p.cfg.Log.Warn("not recorded yet; it will be tried again", "error", err, "in_ms", p.retry.Milliseconds())
		p.due = time.Now().Add(p.retry)
		p.retry = min(2*p.retry, retryLast)
		return nil
	}
	return fmt.Errorf("record what ran: %w", err)
}

// passes tells errors of the store that are worth another try.
func passes(err error) bool {
	return errors.Is(err, queue.ErrNoSpace) || errors.Is(err, queue.ErrUnavailable)
}

// insist repeats what the store refuses for a while, until ctx ends.
func (p *Pool) insist(ctx context.Context, do func() error) error {
	for wait := retryFirst; ; wait = min(2*wait, retryLast) {
		err := do()
		if !passes(err) {
			return err
		}
		p.cfg.Log.Warn("not recorded yet; it will be tried again", "error", err, "in_ms", wait.Milliseconds())
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ring wakes Run.
func (p *Pool) ring() {
	select {
	case p.kick <- struct{}{}:
	default: // it is rung already
	}
}
