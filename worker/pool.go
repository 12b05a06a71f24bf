// Package worker claims jobs, sends them to runners, and records how they ended.
//
// Start with Pool. A single goroutine, Pool.Run, claims jobs and settles attempts (loop.go). The
// other methods of Pool serve the API and may run concurrently. Callers of a method whose name ends
// in Locked hold Pool.mu.
//
// From the claim until its end is stored, a lease passes through the phases that phase.go lists.
// Each other hard part has a file with an explanation at its top:
//
//   - recall.go: how prefetched jobs keep their order
//   - connect.go: how runners are connected
//   - recover.go: what happens when a runner dies
//   - liveness.go and deadline.go: runners that do not answer
//   - isolation.go: separate runners for some jobs
//   - drain.go and pause.go: drains and pauses
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

// prefetchDuration and maxPrefetch limit how many jobs the pool claims beyond the free workers (prefetched
// jobs). It claims at most maxPrefetch, and only as many as all workers together finish within
// prefetchDuration, estimated from the mean of recent run times. If a runner has not started a job within
// recallAfter, the pool recalls all jobs that this runner has not started. Prefetched jobs therefore delay
// a job of a higher rank only briefly.
const (
	prefetchDuration = 20 * time.Millisecond
	maxPrefetch      = 64
	recallAfter      = 50 * time.Millisecond
)

// Limits and delays of the pool.
const (
	MaxWorkers    = 4096
	storeRetryMin = 100 * time.Millisecond // first retry delay after a temporary store error
	// storeRetryMax is the longest retry delay after a temporary store error.
	storeRetryMax = 5 * time.Second
	// shortagePauseMin and shortagePauseMax are the first and the longest pause after the machine
	// lacked resources for a start.
	shortagePauseMin = time.Second
	shortagePauseMax = 30 * time.Second
	// heartbeatTimeout is how long ListWorkers waits for answers of runners.
	heartbeatTimeout = 200 * time.Millisecond
	// purgeTimeout is how long PurgeOutputs waits for one runner. If a deletion takes longer, the service's
	// regular upkeep requests it again.
	purgeTimeout = time.Second

	// startDeadline is how long a runner may start an attempt after the pool has sent it. After that
	// the runner refuses to start the attempt, so an unresponsive runner cannot hold a job for longer.
	startDeadline = 5 * time.Second
)

// Config holds what a pool needs to know. The pool calls the functions whenever it needs their
// value, so changed settings take effect immediately.
type Config struct {
	RunnerLocation runner.Location
	Version        string
	Node           string
	Socket         string // path of the service's socket; jobs get it in QUEUECTL_SOCKET
	Account        Account
	Log            *slog.Logger

	Policy      func() queue.RetryPolicy
	Clock       func() queue.Millis // clock of the store; nil means this machine's clock
	StopTimeout func() time.Duration
	OutputGrace func() time.Duration
	SettleDelay func() time.Duration
	// UserQuota returns how many bytes the jobs of one user may hold. 0, or a nil function, means
	// unlimited.
	UserQuota func() int64
	// CheckStart returns an error if a job may not start on this node. ErrWrongNode means that only another
	// node can start the job. Any other error means that a uid of the job now belongs to another
	// account. It must not block for long.
	CheckStart func(*queue.Job) error
	// ResourceUnitEnv returns environment variables that name the units of resources that the job holds.
	ResourceUnitEnv func(*queue.Job) []string
	// Traceparent returns the trace parent of an attempt that is about to start; "" keeps the one
	// in the job's environment. A nil function does the same.
	Traceparent func(*queue.Job) string
	// OnAttemptEnded is called for each attempt after the attempt's end was recorded. It must not block. It
	// may be nil.
	OnAttemptEnded func(*queue.Job, *store.Settlement)
	// RunningJobsPaused reports whether a whole queue is paused. A nil function means that no queue is.
	RunningJobsPaused func(queue string) bool
	// HungRunnerAdvice returns advice for a user about a runner that hangs.
	HungRunnerAdvice func(pid int64) string
	// HeartbeatInterval returns how long the pool waits for a message of a runner before it checks that the
	// runner is alive.
	HeartbeatInterval func() time.Duration
	// StaleAfter returns how long a worker's runner may send no message before ListWorkers reports the worker
	// as stale.
	StaleAfter func() time.Duration
}

// Account is the account that jobs run as. If RunsAsJobAccount is set, a runner of root runs each job as that
// job's own account.
type Account struct {
	User, Home, Shell string
	UID               int
	RunsAsJobAccount  bool
}

// RunsAs returns the uid that a job runs as. With RunsAsJobAccount this is the uid that the job names, or else
// the uid of the user who enqueued it.
func (a *Account) RunsAs(j *queue.Job) int {
	switch {
	case !a.RunsAsJobAccount:
		return a.UID
	case j.AsUID != nil:
		return *j.AsUID
	}
	return j.UID
}

// Pool runs jobs on a number of workers. New creates it and Run runs it. All other methods may be
// called from any goroutine while Run runs. State that only Run's goroutine uses is in loop.
type Pool struct {
	store  store.Session
	cfg    Config
	wakeUp chan struct{} // wakes Run after a change of the fields below

	// mu guards all fields below. There is one lock because a change of a lease often changes its
	// runner too.
	mu            sync.Mutex
	wantedWorkers int
	stopping      bool // Stop was called: no further job is claimed or started
	// maxGrace is the longest time between SIGTERM and SIGKILL, for requests that do not wait for
	// the job's own kill_after.
	maxGrace          time.Duration
	draining          bool       // a drain is on: no job is sent to a runner
	allPaused         bool       // all jobs are paused
	claimsPausedUntil time.Time  // no job is claimed before this time; zero if claims are not paused
	lastStartErr      string     // error of the last job whose start failed and paused claims
	leaseDeadline     deadline   // when the leases of this pool lapse
	endedRates        endedRates // attempts recorded as ended
	leases            leases
	recallCount       int // number of recalls since the start of the pool, see recall.go
	runners           runners
	lostLeases        []store.LostLease // leases of lost nodes that Run has to settle
}

// New returns a pool with a number of workers. It starts nothing until Run is called.
func New(s store.Session, cfg Config, workers int) *Pool {
	p := &Pool{
		store: s, cfg: cfg, wantedWorkers: workers, maxGrace: runner.StopGrace(), wakeUp: make(chan struct{}, 1),
		leases: newLeases(cfg.Log),
	}
	p.runners = runners{cfg: &p.cfg, contacts: map[string]*runnerContact{}, connectSignal: make(chan struct{})}
	return p
}

// wake wakes Run.
func (p *Pool) wake() { queue.TrySend(p.wakeUp, struct{}{}) }

// WantedWorkers returns how many workers are wanted.
func (p *Pool) WantedWorkers() int { return locked(p, &p.wantedWorkers) }

// locked returns the value of a field that the pool's mu guards.
func locked[T any](p *Pool, field *T) T {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *field
}

// SetWantedWorkers sets how many workers are wanted. Additional workers start immediately; surplus workers
// finish their jobs first. After Stop was called, the number is always 0.
func (p *Pool) SetWantedWorkers(n int) {
	p.mu.Lock()
	if p.stopping {
		n = 0
	}
	fewer := n < p.wantedWorkers
	p.wantedWorkers = min(max(n, 0), MaxWorkers)
	if fewer {
		p.recallFromCurrentLocked()
	}
	p.mu.Unlock()
	p.sendSetup()
	p.wake()
}

// recallFromCurrentLocked recalls all jobs that wait in the current runner or for a runner.
func (p *Pool) recallFromCurrentLocked() {
	p.recallLocked(func(h *lease) bool { return h.phase.neverSent() || h.conn.state == connCurrent })
}

// ThrottleReason returns why the pool claims fewer jobs than usual, with the error of the last job whose
// start failed. It returns "" if the pool claims as many as usual.
func (p *Pool) ThrottleReason() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !time.Now().Before(p.claimsPausedUntil) {
		return ""
	}
	return fmt.Sprintf(
		"the service starts fewer jobs for a while, because some jobs could not start; its log names them; the last error "+
			"was: %s", p.lastStartErr)
}

// WaitForScaleDown waits until the number of running jobs is at most the number of wanted workers. When the
// timeout has passed, it ends the surplus jobs, the youngest first, and waits until they have
// returned to the queue. endedBy is the uid of the user who caused this, or nil. When ctx ends,
// WaitForScaleDown returns and ends no further job. If a runner does not answer, the error names that runner.
func (p *Pool) WaitForScaleDown(ctx context.Context, timeout time.Duration, endedBy *int) error {
	deadline := time.After(timeout)
	for expired := false; ; {
		p.mu.Lock()
		running, changed, n := p.leases.oldestFirstLocked(), p.leases.changeSignal, p.wantedWorkers
		p.mu.Unlock()
		if len(running) <= n {
			return nil
		}
		if expired {
			return p.requeueAll(ctx, running[n:], endedBy)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			expired = true
		case <-changed:
		}
	}
}

// requeueAll ends the jobs of leases, returns them to the queue and waits until the jobs of
// responsive runners have returned.
func (p *Pool) requeueAll(ctx context.Context, list []*lease, endedBy *int) (err error) {
	for _, h := range list {
		p.requestEnd(h, queue.EndStopped, endedBy, "worker.stop")
	}
	unresponsive := map[*runnerConn]bool{} // unresponsive runners; wait for each only once
	for _, h := range list {
		conn := locked(p, &h.conn)
		if unresponsive[conn] {
			continue
		}
		if _, waitErr := p.awaitAnswer(ctx, h, nil); waitErr != nil {
			err, unresponsive[conn] = waitErr, true
		}
	}
	return err
}

// IsStopping reports whether Stop was called. From then on no job starts.
func (p *Pool) IsStopping() bool { return locked(p, &p.stopping) }

// Stop ends the pool's work. It claims no further job and gives running jobs the timeout to finish.
// It ends paused jobs immediately, since they would not finish. It then ends the remaining jobs,
// with at most grace between SIGTERM and SIGKILL, and returns them to the queue. Finally it ends
// the runners. If a runner does not answer, Stop kills the runner with all its jobs. The caller
// cancels the context of Run after Stop has returned.
func (p *Pool) Stop(ctx context.Context, timeout, grace time.Duration) {
	p.mu.Lock()
	p.stopping, p.maxGrace = true, grace
	// Paused jobs would not finish.
	paused := p.leases.selectLocked(func(h *lease) bool { return h.hasStarted() && p.isPausedLocked(h) })
	p.mu.Unlock()
	p.SetWantedWorkers(0)
	for _, h := range paused {
		p.requestEnd(h, queue.EndStopped, nil, "")
	}
	if p.WaitForScaleDown(ctx, timeout, nil) != nil {
		p.killUnresponsiveAtStop()
		p.WaitForScaleDown(ctx, grace, nil)
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
	timeUp := time.After(2 * time.Second)
	for _, conn := range clients {
		select {
		case <-conn.closed:
		case <-timeUp: // stop waiting: the runner ends itself when its work is done
			return
		}
	}
}

// HastenStop makes a concurrent Stop end all running jobs immediately, with at most grace between
// SIGTERM and SIGKILL.
func (p *Pool) HastenStop(ctx context.Context, grace time.Duration) {
	p.mu.Lock()
	p.maxGrace = min(p.maxGrace, grace)
	p.mu.Unlock()
	p.WaitForScaleDown(ctx, 0, nil)
}

// WorkerStatus describes the current state of one worker.
type WorkerStatus struct {
	ID    string
	JobID string // job id; "" if the worker is idle
	// uid of the only user, apart from operators, with access to the job; see queue.Job.RestrictedToUID
	RestrictedToUID *int
	PID             int
	StartedAt       queue.Millis // start time of the job
	LastHeartbeat   time.Time    // time of the last message from the worker's runner
	Stale           bool
	// Stuck reports that the process PID of an ended job occupies the worker, because it survives
	// SIGKILL.
	Stuck   bool
	Surplus bool // the worker ends when its job ends, since more jobs run than workers are wanted
	Paused  bool // the worker's job is paused, or all jobs are
}

// ListWorkers returns all workers, those that run a job and those that are idle.
func (p *Pool) ListWorkers(ctx context.Context) []WorkerStatus {
	p.heartbeat(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	var list []WorkerStatus
	busy := map[string]bool{}
	for _, h := range p.leases.oldestFirstLocked() {
		if !h.hasStarted() || h.attempt.workerID == "" {
			continue
		}
		busy[h.attempt.workerID] = true
		w := WorkerStatus{
			ID: h.attempt.workerID, JobID: h.job.ID, RestrictedToUID: h.job.RestrictedToUID(),
			PID: h.attempt.pid, StartedAt: h.attempt.startedAt,
			LastHeartbeat: h.lastMessageAt, Stale: true, Surplus: len(list) >= p.wantedWorkers, Paused: p.isPausedLocked(h),
		}
		if h.conn != nil {
			stale := deadlineAfter(h.conn.lastMessageAt, p.cfg.StaleAfter())
			w.LastHeartbeat, w.Stale = h.conn.lastMessageAt, h.conn.state == connUnresponsive || stale.passed(now)
		}
		list = append(list, w)
	}
	for _, conn := range p.runners.clients {
		for _, a := range conn.stuckAttempts[:p.stuckWorkerCountOfLocked(conn)] {
			id := runner.WorkerName(conn.Dir, a.Slot)
			busy[id] = true
			list = append(list, WorkerStatus{
				ID: id, PID: int(a.PID), StartedAt: queue.Millis(a.StartedAtMillis), LastHeartbeat: conn.lastMessageAt, Stuck: true,
			})
		}
	}
	for slot := int64(1); len(list) < p.wantedWorkers; slot++ {
		if id := runner.WorkerID(slot); !busy[id] {
			list = append(list, WorkerStatus{ID: id, LastHeartbeat: time.Now(), Paused: p.allPaused})
		}
	}
	return list
}

// BusyWorkers returns how many workers run a job or are occupied by a process that survives SIGKILL. It counts what the
// runners have reported.
func (p *Pool) BusyWorkers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.stuckWorkerCountLocked()
	for _, h := range p.leases.byLease {
		if h.hasStarted() {
			n++
		}
	}
	return n
}
