// Package worker claims jobs, has them run, and settles them.
package worker

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// A block of claimed jobs holds this much work at most, by the mean of recent
// runs. If a runner has not started a job staleAfter it was sent, the pool recalls
// all jobs that it has not started, so that a job of higher rank waits no longer.
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
	Clock       func() queue.Millis // the store's; nil is this machine's
	StopTimeout func() time.Duration
	OutputGrace func() time.Duration
	SettleDelay func() time.Duration
	// UserQuota returns how many bytes the jobs of one user may hold; 0 means unlimited. A nil function means
	// unlimited too.
	UserQuota   func() int64
	Disowned    func(*queue.Job) error              // why a job may not start: a uid of it belongs to another account now; must not wait long
	Units       func(*queue.Job) []string           // variables that name the units of resources which it holds
	Traceparent func(*queue.Job) string             // of the attempt that begins, "" for what the job has; nil if there is none
	Ended       func(*queue.Job, *store.Settlement) // is told of each attempt once it is recorded, and must not wait; nil tells nobody
	Frozen      func(queue string) bool             // everything of a queue stands still, and nothing of it starts; nil if there is none
	EndHung     func(pid int64) string              // what a person can do about a runner that hangs
	HeardEvery  func() time.Duration                // a worker not heard for so long is asked
	StaleAfter  func() time.Duration                // one not heard for so long is stale
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
// other methods may be called from any goroutine while Run runs. What is here is for
// all of them; what is for Run's goroutine alone is in loop.
type Pool struct {
	store store.Session
	cfg   Config
	kick  chan struct{} // something below changed

	mu       sync.Mutex    // one for all that follows: a change of a lease is one of its runner as well
	target   int           // workers wanted
	stopping bool          // claim nothing more
	grace    time.Duration // that commands get at most, for whoever does not wait as long as they ask
	draining bool          // claim nothing until that is over
	frozen   bool          // everything is paused
	paused   time.Time     // claim nothing until then
	startErr string        // error of the last job that set paused
	until    time.Time     // the leases are this pool's up to then, zero for ever
	rate     rate          // of ends
	rates    queueRates    // the same of each queue
	leases   leases
	recalls  int // number of recalls since the start, see recall.go
	runners  runners
	orphaned []store.LostLease // to be settled
}

// New makes a pool of workers.
func New(s store.Session, cfg Config, workers int) *Pool {
	p := &Pool{store: s, cfg: cfg, target: workers, grace: runner.StopGrace(), kick: make(chan struct{}, 1), leases: newLeases()}
	p.runners = runners{cfg: &p.cfg, contacts: map[string]*contact{}, connected: make(chan struct{})}
	return p
}

// ring wakes Run.
func (p *Pool) ring() {
	select {
	case p.kick <- struct{}{}:
	default: // it is rung already
	}
}

// Workers is how many workers are wanted.
func (p *Pool) Workers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

// Scale sets how many workers are wanted: more begin at once; fewer finish what
// they run. Once Stop has begun none are.
func (p *Pool) Scale(n int) {
	p.mu.Lock()
	if p.stopping {
		n = 0
	}
	fewer := n < p.target
	p.target = min(max(n, 0), MaxWorkers)
	if fewer {
		p.takeBack()
	}
	p.mu.Unlock()
	p.setUp()
	p.ring()
}

// takeBack recalls all jobs that wait in the current runner, or for a runner. The caller holds mu.
func (p *Pool) takeBack() {
	p.recall(func(h *leaseState) bool { return h.waiting || h.conn.current })
}

// Paused returns why the pool claims fewer jobs than usual, with the error of the last job that could not start. It
// returns "" if the pool claims as many as usual.
func (p *Pool) Paused() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !time.Now().Before(p.paused) {
		return ""
	}
	return fmt.Sprintf("jobs could not start (last error: %s), so fewer are started for a while; the service's log names these jobs", p.startErr)
}

// Settle waits until no more jobs run than there are to be workers. After a while the surplus, the youngest first, is
// ended and given back, on behalf of by unless that is nil, and Settle waits for that.
// When ctx ends it waits no longer, and what was not ended yet is not. An error names a
// runner that does not answer.
func (p *Pool) Settle(ctx context.Context, within time.Duration, by *int) error {
	over := time.After(within)
	for late := false; ; {
		p.mu.Lock()
		running, ended, n := p.leases.byAge(), p.leases.ended, p.target
		p.mu.Unlock()
		if len(running) <= n {
			return nil
		}
		if late {
			return p.endAll(ctx, running[n:], by)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
			late = true
		case <-ended:
		}
	}
}

// endAll ends leases, gives them back, and waits for those whose runners answer.
func (p *Pool) endAll(ctx context.Context, list []*leaseState, by *int) (err error) {
	for _, h := range list {
		p.endOne(h, queue.Stopped, by, "worker.stop")
	}
	silent := map[*runnerConn]bool{} // each is waited for once
	for _, h := range list {
		p.mu.Lock()
		conn := h.conn
		p.mu.Unlock()
		if silent[conn] {
			continue
		}
		if _, failed := p.waitFor(ctx, h, nil); failed != nil {
			err, silent[conn] = failed, true
		}
	}
	return err
}

// Stopping reports whether Stop has begun: then no job is started any more.
func (p *Pool) Stopping() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopping
}

// Stop claims nothing more, lets running jobs finish for a while, unless they are paused, then
// ends them, with no more grace than this, and gives them back, and ends the runners: those that
// do not answer with all that they run. Run is to be ended after it.
func (p *Pool) Stop(ctx context.Context, within, grace time.Duration) {
	p.mu.Lock()
	p.stopping, p.grace = true, grace
	var still []*leaseState // which would not finish
	for _, h := range p.leases.all {
		if h.running && p.standsStill(h) {
			still = append(still, h)
		}
	}
	p.mu.Unlock()
	p.Scale(0)
	for _, h := range still {
		p.endOne(h, queue.Stopped, nil, "")
	}
	if p.Settle(ctx, within, nil) != nil {
		p.endSilent()
		p.Settle(ctx, grace, nil)
	}
	p.mu.Lock()
	clients := slices.Clone(p.runners.clients)
	for _, conn := range clients {
		conn.dismissed = true
	}
	p.mu.Unlock()
	for _, conn := range clients {
		conn.Send(&wire.Shutdown{})
	}
	limit := time.After(2 * time.Second)
	for _, conn := range clients {
		select {
		case <-conn.gone:
		case <-limit: // it ends by itself, once nobody needs it
			return
		}
	}
}

// Hurry has a Stop that is under way let nothing finish, and end what runs with no more grace than this.
func (p *Pool) Hurry(ctx context.Context, grace time.Duration) {
	p.mu.Lock()
	p.grace = min(p.grace, grace)
	p.mu.Unlock()
	p.Settle(ctx, 0, nil)
}

// Status is one worker as of now.
type Status struct {
	ID        string
	Job       string // its id; "" when idle
	Private   *int   // see queue.Job.Private
	PID       int
	StartedAt queue.Millis // of the job
	Heard     time.Time    // when the worker's runner was last heard
	Stale     bool
	Stuck     bool // taken by a process, PID, that outlives SIGKILL, though its job has ended
	Leaving   bool // it ends with its job: more run than are wanted
	Paused    bool // it stands still with its job, or with everything
}

// List lists the workers: those that run a job, and those that could.
func (p *Pool) List(ctx context.Context) []Status {
	p.hear(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []Status
	busy := map[string]bool{}
	for _, h := range p.leases.byAge() {
		if !h.running || h.worker == "" {
			continue
		}
		busy[h.worker] = true
		w := Status{ID: h.worker, Job: h.job.ID, Private: h.job.Private(), PID: h.pid, StartedAt: h.at, Heard: h.heard, Stale: true, Leaving: len(list) >= p.target, Paused: p.standsStill(h)}
		if h.conn != nil {
			w.Heard, w.Stale = h.conn.lived, h.conn.silent || time.Since(h.conn.lived) > p.cfg.StaleAfter()
		}
		list = append(list, w)
	}
	for _, conn := range p.runners.clients {
		for _, a := range conn.stuck[:p.takenBy(conn)] {
			id := runner.Worker(conn.Dir, a.Slot)
			busy[id] = true
			list = append(list, Status{ID: id, PID: int(a.PID), StartedAt: queue.Millis(a.StartedAt), Heard: conn.lived, Stuck: true})
		}
	}
	for slot := int64(1); len(list) < p.target; slot++ {
		if id := runner.WorkerID(slot); !busy[id] {
			list = append(list, Status{ID: id, Heard: time.Now(), Paused: p.frozen})
		}
	}
	return list
}

// Busy is how many workers run a job, or are taken by one that could not be killed,
// as far as has been told.
func (p *Pool) Busy() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.taken()
	for _, h := range p.leases.all {
		if h.running {
			n++
		}
	}
	return n
}
