// Package worker claims jobs, sends them to runners (the processes that run commands), and records how they
// ended.
//
// Start with Pool. A single goroutine, Pool.Run, claims jobs and settles attempts (loop.go). The
// other methods of Pool serve the API and may run concurrently. Callers of a method whose name ends
// in Locked hold Pool.mu.
//
// A claimed job has a lease: the right of this service to run it. Until the end of the lease is stored, it
// passes through the phases that phase.go lists. Other difficult parts are explained at the top of their
// files:
//
//   - recall.go: how jobs that were sent to a runner in advance keep their order
//   - connect.go: how the service connects to its runners
//   - recover.go: what happens when a runner dies
//   - unresponsive_runners.go and deadline.go: runners that do not answer
//   - isolation.go: separate runners for jobs that may harm others
//   - drain.go and pause.go: how starts are stopped for a while, and how jobs are paused
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

// Prefetched jobs are those that the pool claims in addition to one for each free worker. The pool prefetches
// at most maxPrefetch jobs, and only as many as all workers together finish within prefetchDuration. It
// estimates this number from the mean of recent run times. If a runner has not started a job within
// recallAfter, the pool takes back all jobs that this runner has not started. So prefetched jobs delay a new
// job that ranks before them only briefly.
const (
	prefetchDuration = 20 * time.Millisecond
	maxPrefetch      = 64
	recallAfter      = 50 * time.Millisecond
)

// These constants are limits and delays of the pool.
const (
	MaxWorkers    = 4096
	storeRetryMin = 100 * time.Millisecond // first retry delay after a temporary store error
	// storeRetryMax is the longest retry delay after a temporary store error.
	storeRetryMax = 5 * time.Second
	// shortagePauseMin and shortagePauseMax are the first and the longest pause of claims after the machine
	// lacked resources for the start of a job.
	shortagePauseMin = time.Second
	shortagePauseMax = 30 * time.Second
	// heartbeatTimeout is how long ListWorkers waits until runners have answered that they are alive.
	heartbeatTimeout = 200 * time.Millisecond
	// purgeTimeout is how long PurgeOutputs waits for one runner to delete files. If this takes longer, the
	// service asks the runner again later.
	purgeTimeout = time.Second

	// startDeadline is how long after the pool has sent a job the runner may start it. Later, the runner
	// refuses to start the job. So the pool can then take the job back, even if the runner does not answer.
	startDeadline = 5 * time.Second
)

// Config is the configuration of a pool. The pool calls each function whenever it needs the value, so
// changed settings take effect immediately.
type Config struct {
	RunnerLocation runner.Location
	Version        string // version of the service's program
	Node           string // name of this node
	Socket         string // path of the service's socket; jobs get it in QUEUECTL_SOCKET
	Account        Account
	Log            *slog.Logger

	Policy      func() queue.RetryPolicy // returns the retry policy in the settings
	Clock       func() queue.Millis      // returns the time on the store's clock; nil means this machine's clock
	StopTimeout func() time.Duration     // returns how long jobs may continue when the operating system ends a runner
	OutputGrace func() time.Duration     // returns how long processes of a job may outlive its main process
	SettleDelay func() time.Duration     // returns how long a runner gathers results before it sends them
	// UserQuota returns how many bytes the stored jobs of one user may occupy. 0 means unlimited, as does a
	// nil function.
	UserQuota func() int64
	// CheckStart returns an error if a job may not start on this node. ErrWrongNode means that another node
	// may start the job. Any other error means that a uid of the job now belongs to another account.
	// CheckStart must not block for long.
	CheckStart func(*queue.Job) error
	// ResourceUnitEnv returns environment variables that list which units of its resources the job has, such
	// as which GPUs.
	ResourceUnitEnv func(*queue.Job) []string
	// Traceparent returns the trace parent (W3C Trace Context) of an attempt that is about to start. If it
	// returns "" or is nil, the attempt gets the trace parent in the job's environment.
	Traceparent func(*queue.Job) string
	// OnAttemptEnded is called after the end of an attempt was recorded. It must not block. It may be nil.
	OnAttemptEnded func(*queue.Job, *store.Settlement)
	// RunningJobsPaused reports whether a whole queue is paused, including its running jobs. A nil function
	// means that no queue is.
	RunningJobsPaused func(queue string) bool
	// HungRunnerAdvice returns a text for users: what to do about a runner that hangs.
	HungRunnerAdvice func(pid int64) string
	// HeartbeatInterval returns how long the pool waits for a message of a runner before it checks that the
	// runner is alive.
	HeartbeatInterval func() time.Duration
	// StaleAfter returns how long the runner of a worker may send no message before ListWorkers reports the
	// worker as stale.
	StaleAfter func() time.Duration
}

// Account is the account that jobs run as. If RunsAsJobAccount is set, a runner of root instead runs each
// job under the job's own account.
type Account struct {
	User, Home, Shell string
	UID               int
	RunsAsJobAccount  bool
}

// RunsAs returns the uid that a job runs as. If RunsAsJobAccount is set, this is the uid that the job names
// or, if it names none, the uid of the user who enqueued it. Otherwise it is the UID of a.
func (a *Account) RunsAs(j *queue.Job) int {
	switch {
	case !a.RunsAsJobAccount:
		return a.UID
	case j.AsUID != nil:
		return *j.AsUID
	}
	return j.UID
}

// Pool runs jobs on a number of workers. New creates it and Run runs it. All other methods may be called from
// any goroutine while Run runs. State that only Run's goroutine uses is in the type loop.
type Pool struct {
	store  store.Session
	cfg    Config
	wakeUp chan struct{} // wakes Run after a change of the fields below

	// mu guards all fields below. Leases and runners have one lock, because a change of a lease often changes
	// its runner too.
	mu            sync.Mutex
	wantedWorkers int
	stopping      bool // Stop was called: no further job is claimed or started
	// maxGrace is the longest time between SIGTERM and SIGKILL for a job, except if the job's own user ends
	// it. In that case the job gets its full kill_after.
	maxGrace          time.Duration
	draining          bool        // a drain is on: no job is sent to a runner
	allPaused         bool        // all jobs are paused (SetAllPaused)
	claimsPausedUntil time.Time   // no job is claimed before this time; zero if claims are not paused
	lastStartErr      string      // error of the last failed start that has paused claims
	leaseDeadline     deadline    // when this pool may no longer run its jobs (SetLeaseDeadline)
	endedCounts       endedCounts // attempts recorded as ended
	leases            leases
	recallCount       int // how often jobs were taken back from runners since the start of the pool (see recall.go)
	runners           runners
	lostLeases        []store.LostLease // leases of lost nodes that Run must still settle
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

// wake makes Run search for work. It does not block.
func (p *Pool) wake() { queue.TrySend(p.wakeUp, struct{}{}) }

// WantedWorkers returns the number of workers that was set with New or SetWantedWorkers; 0 after Stop.
func (p *Pool) WantedWorkers() int { return lockedValue(p, &p.wantedWorkers) }

// lockedValue returns the value of a field that the pool's mu guards.
func lockedValue[T any](p *Pool, field *T) T {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *field
}

// SetWantedWorkers sets how many workers are wanted. Additional workers start immediately. Surplus workers
// end after their current jobs. After Stop was called, the number is always 0.
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

// recallFromCurrentLocked takes back all jobs that wait in the current runner (the one for new jobs) or were
// not sent yet.
func (p *Pool) recallFromCurrentLocked() {
	p.recallLocked(func(h *lease) bool { return h.phase.neverSent() || h.conn.state == connCurrent })
}

// ThrottleReason returns the reason why the pool claims no jobs at the moment, or "" if claims are not
// paused. The reason contains the error of the last failed start.
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

// WaitForScaleDown waits until the number of running jobs is at most the number of wanted workers. After
// the timeout, it ends the surplus jobs, the youngest first, and waits until they have returned to the
// queue. endedBy is the uid of the user who requested this, or nil. When ctx ends, WaitForScaleDown returns
// and ends no further job. If a runner does not answer, the error names the runner.
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

// requeueAll ends the jobs of leases and returns them to the queue. It waits until this is recorded, but
// not for jobs of a runner that does not answer.
func (p *Pool) requeueAll(ctx context.Context, leaseList []*lease, endedBy *int) (err error) {
	for _, h := range leaseList {
		p.requestEnd(h, queue.EndStopped, endedBy, "worker.stop")
	}
	unresponsive := map[*runnerConn]bool{} // runners that did not answer; do not wait for them again
	for _, h := range leaseList {
		conn := lockedValue(p, &h.conn)
		if unresponsive[conn] {
			continue
		}
		if _, waitErr := p.awaitAnswer(ctx, h, nil); waitErr != nil {
			err, unresponsive[conn] = waitErr, true
		}
	}
	return err
}

// IsStopping reports whether Stop was called. From that time on, no job starts.
func (p *Pool) IsStopping() bool { return lockedValue(p, &p.stopping) }

// Stop ends the pool's work. The pool claims no further job, and running jobs may finish within the
// timeout. Stop ends paused jobs immediately, because they would not finish. After the timeout, it ends the
// remaining jobs and returns them to the queue. grace is the longest time between SIGTERM and SIGKILL.
// Finally it ends the runners. If a runner does not answer, Stop kills it with all its jobs. The caller
// must cancel the context of Run after Stop has returned.
func (p *Pool) Stop(ctx context.Context, timeout, grace time.Duration) {
	p.mu.Lock()
	p.stopping, p.maxGrace = true, grace
	// End paused jobs now, because they would not finish.
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
		case <-timeUp: // stop waiting: the runner ends by itself when its jobs have ended
			return
		}
	}
}

// HastenStop makes a Stop that is in progress end all running jobs immediately. grace is the longest time
// between SIGTERM and SIGKILL.
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
	// RestrictedToUID is the uid of the only user, apart from operators, that may see the job. See
	// queue.Job.RestrictedToUID.
	RestrictedToUID *int
	PID             int          // pid of the job's main process
	StartedAt       queue.Millis // start time of the job
	LastHeartbeat   time.Time    // time of the last message from the worker's runner
	Stale           bool         // the runner is disconnected, does not answer, or has sent nothing for Config.StaleAfter
	// Stuck means that an ended job still occupies the worker, because its process PID survives SIGKILL.
	Stuck   bool
	Surplus bool // the worker will end with its job, because there are more workers than wanted
	Paused  bool // the worker's job is paused, or all jobs are
}

// ListWorkers returns the status of all workers: those that run a job and those that are idle.
func (p *Pool) ListWorkers(ctx context.Context) []WorkerStatus {
	p.heartbeat(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	var workers []WorkerStatus
	busy := map[string]bool{}
	for _, h := range p.leases.oldestFirstLocked() {
		if !h.hasStarted() || h.attempt.workerID == "" {
			continue
		}
		busy[h.attempt.workerID] = true
		w := WorkerStatus{
			ID: h.attempt.workerID, JobID: h.job.ID, RestrictedToUID: h.job.RestrictedToUID(),
			PID: h.attempt.pid, StartedAt: h.attempt.startedAt,
			LastHeartbeat: h.lastMessageAt, Stale: true, Surplus: len(workers) >= p.wantedWorkers, Paused: p.isPausedLocked(h),
		}
		if h.conn != nil {
			stale := deadlineAfter(h.conn.lastMessageAt, p.cfg.StaleAfter())
			w.LastHeartbeat, w.Stale = h.conn.lastMessageAt, h.conn.state == connUnresponsive || stale.passed(now)
		}
		workers = append(workers, w)
	}
	for _, conn := range p.runners.clients {
		for _, a := range conn.stuckAttempts[:p.stuckWorkerCountOfLocked(conn)] {
			id := runner.WorkerName(conn.Dir, a.Slot)
			busy[id] = true
			workers = append(workers, WorkerStatus{
				ID: id, PID: int(a.PID), StartedAt: queue.Millis(a.StartedAtMillis), LastHeartbeat: conn.lastMessageAt, Stuck: true,
			})
		}
	}
	for slot := int64(1); len(workers) < p.wantedWorkers; slot++ {
		if id := runner.SlotName(slot); !busy[id] {
			workers = append(workers, WorkerStatus{ID: id, LastHeartbeat: time.Now(), Paused: p.allPaused})
		}
	}
	return workers
}

// BusyWorkers returns how many workers run a job or are occupied by a process that survives SIGKILL. It
// uses the last reports of the runners.
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
