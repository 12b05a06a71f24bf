// Package worker claims jobs, sends them to runners (the processes that run commands), and records how they ended.
//
// Start with Pool. A single goroutine, Pool.Run, claims jobs and settles attempts (loop.go). The other methods of Pool
// serve the API and may run concurrently. Callers of a method whose name ends in Locked hold Pool.mu.
//
// A claimed job has a lease: the right of this service to run it. Until the end of the lease is stored, the lease
// passes through the phases that phase.go lists. Other difficult parts are explained at the top of their files:
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

// Prefetched jobs are jobs that the pool claims although no worker is free for them yet. The pool prefetches at most
// maxPrefetchedJobs jobs, and only as many as all workers together finish within maxPrefetchRunTime. It estimates this
// number from the mean of recent run times. If a runner has not started a job within unstartedRecallDelay, the pool
// takes back all jobs that this runner has not started. So prefetched jobs delay a new job that ranks before them only
// briefly.
const (
	maxPrefetchRunTime   = 20 * time.Millisecond
	maxPrefetchedJobs    = 64
	unstartedRecallDelay = 50 * time.Millisecond
)

// These constants are limits and delays of the pool.
const (
	MaxWorkers         = 4096
	minStoreRetryDelay = 100 * time.Millisecond // first retry delay after a temporary store error
	// maxStoreRetryDelay is the longest retry delay after a temporary store error.
	maxStoreRetryDelay = 5 * time.Second
	// minShortagePause and maxShortagePause are the first and the longest pause of claims after the machine
	// lacked resources for the start of a job.
	minShortagePause = time.Second
	maxShortagePause = 30 * time.Second
	// silentRunnerCheckTimeout is how long ListWorkers waits until runners have answered that they are alive.
	silentRunnerCheckTimeout = 200 * time.Millisecond
	// outputPurgeTimeout is how long PurgeOutputs waits for one runner to delete files. If this takes longer, the
	// service asks the runner again later.
	outputPurgeTimeout = time.Second

	// startDeadline is the time within which a runner may start a job that the pool has sent. After that time, the runner
	// refuses to start the job. The pool can then take the job back, even if the runner does not answer.
	startDeadline = 5 * time.Second
)

// Config is the configuration of a pool. The pool calls each of the functions whenever it needs the function's value,
// so changed settings take effect immediately.
type Config struct {
	RunnerLocation runner.RunnersLocation
	ServiceVersion string // version of the service's program
	NodeName       string // name of this node
	SocketPath     string // path of the service's socket; jobs get it in QUEUECTL_SOCKET
	Account        Account
	Log            *slog.Logger

	RetryPolicy func() queue.RetryPolicy // returns the retry policy in the settings
	StoreTime   func() queue.UnixMillis  // returns the time on the store's clock
	StopTimeout func() time.Duration     // returns how long jobs may continue when the operating system ends a runner
	OutputGrace func() time.Duration     // returns how long processes of a job may outlive its main process
	SettleDelay func() time.Duration     // returns how long a runner gathers results before it sends them
	// UserQuotaBytes returns how many bytes the stored jobs of one user may occupy. 0 means unlimited.
	UserQuotaBytes func() int64
	// CheckJobMayStart returns an error if a job may not start on this node. ErrJobNeedsOtherNode means that another node
	// may start the job. Any other error means that a uid of the job now belongs to another account.
	// CheckJobMayStart must not block for long.
	CheckJobMayStart func(*queue.Job) error
	// ResourceUnitEnv returns environment variables that contain the names of the resource units that the job has, such as
	// its GPUs.
	ResourceUnitEnv func(*queue.Job) []string
	// AttemptTraceparent returns the trace parent (W3C Trace Context) of an attempt that is about to start. If it
	// returns "", the attempt gets the trace parent in the job's environment.
	AttemptTraceparent func(*queue.Job) string
	// OnAttemptEnded is called after the end of an attempt was recorded. It must not block.
	OnAttemptEnded func(*queue.Job, *store.Settlement)
	// AreRunningJobsPaused reports whether a whole queue is paused, including its running jobs.
	AreRunningJobsPaused func(queue string) bool
	// HungRunnerAdvice returns a text for users: what to do about a runner that hangs.
	HungRunnerAdvice func(pid int64) string
	// HeartbeatInterval returns how long the pool waits for a message of a runner before it checks that the
	// runner is alive.
	HeartbeatInterval func() time.Duration
	// WorkerStaleAfter returns how long the runner of a worker may send no message before ListWorkers reports the
	// worker as stale.
	WorkerStaleAfter func() time.Duration
}

// Account is the account that jobs run as. If UsesPerJobAccount is set, a runner of root instead runs each
// job under the job's own account.
type Account struct {
	UserName, HomeDir, ShellPath string
	UID                          int
	UsesPerJobAccount            bool
}

// JobUID returns the uid that a job runs as. If UsesPerJobAccount is set, this is the uid that the job names or, if the
// job names none, the uid of the user who enqueued it. Otherwise it is a.UID.
func (a *Account) JobUID(j *queue.Job) int {
	switch {
	case !a.UsesPerJobAccount:
		return a.UID
	case j.RunAsUID != nil:
		return *j.RunAsUID
	}
	return j.UID
}

// Pool runs jobs on a number of workers. New creates it and Run runs it. All other methods may be called from any
// goroutine while Run runs. State that only Run's goroutine uses is in the type poolLoop.
type Pool struct {
	store        store.Session
	cfg          Config
	wakeUpSignal chan struct{} // wakes Run after a change of the fields below

	// mu guards all fields below. Leases and runners have one lock, because a change of a lease often changes
	// its runner too.
	mu                sync.Mutex
	wantedWorkerCount int
	stopRequested     bool // Stop was called: no further job is claimed or started
	// maxKillGrace is the longest time between SIGTERM and SIGKILL for a job, except if the job's own user ends the job.
	// In that case, the job gets its full kill_after.
	maxKillGrace      time.Duration
	draining          bool               // a drain is in progress: no job is sent to a runner
	allJobsPaused     bool               // all jobs are paused (SetAllJobsPaused)
	claimsPausedUntil time.Time          // no job is claimed before this time
	lastStartErr      string             // error of the last failed start that has paused claims
	leaseDeadline     deadline           // when this pool may no longer run its jobs (SetLeaseDeadline)
	endedAttempts     endedAttemptCounts // attempts recorded as ended
	leases            leases
	recallCount       int // how often jobs were taken back from runners since the start of the pool (see recall.go)
	runners           runners
	lostLeases        []store.LostLease // leases of lost nodes that Run must still settle
}

// New returns a pool with workerCount workers. It starts nothing until Run is called.
func New(s store.Session, cfg Config, workerCount int) *Pool {
	p := &Pool{
		store: s, cfg: cfg, wantedWorkerCount: workerCount, maxKillGrace: runner.StopGracePeriod(),
		wakeUpSignal: make(chan struct{}, 1),
		leases:       newLeases(cfg.Log),
	}
	p.runners = runners{cfg: &p.cfg, contactsByDir: map[string]*runnerContact{}, connectedSignal: make(chan struct{})}
	return p
}

// wakeLoop makes Run search for work. It does not block.
func (p *Pool) wakeLoop() { queue.TrySend(p.wakeUpSignal, struct{}{}) }

// WantedWorkerCount returns the number of workers that was set with New or SetWantedWorkerCount; 0 after Stop.
func (p *Pool) WantedWorkerCount() int { return readWithLock(p, &p.wantedWorkerCount) }

// readWithLock returns the value of a field that the pool's mu guards.
func readWithLock[T any](p *Pool, field *T) T {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *field
}

// SetWantedWorkerCount sets how many workers are wanted. Additional workers start immediately. Surplus workers
// end after their current jobs. After Stop was called, the number is always 0.
func (p *Pool) SetWantedWorkerCount(n int) {
	p.mu.Lock()
	if p.stopRequested {
		n = 0
	}
	fewer := n < p.wantedWorkerCount
	p.wantedWorkerCount = min(max(n, 0), MaxWorkers)
	if fewer {
		p.recallFromCurrentRunnerLocked()
	}
	p.mu.Unlock()
	p.sendChangedRunnerSetup()
	p.wakeLoop()
}

// recallFromCurrentRunnerLocked takes back all jobs that wait in the current runner (the one for new jobs) or were
// not sent yet.
func (p *Pool) recallFromCurrentRunnerLocked() {
	p.recallJobsLocked(func(h *lease) bool { return h.phase.wasNeverSent() || h.runnerConn.state == connCurrent })
}

// ClaimPauseReason returns the reason why the pool claims no jobs at the moment, or "" if claims are not
// paused. The reason contains the error of the last failed start.
func (p *Pool) ClaimPauseReason() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !time.Now().Before(p.claimsPausedUntil) {
		return ""
	}
	return fmt.Sprintf(
		"the service starts fewer jobs for a while, because some jobs could not start; its log names them; the last error "+
			"was: %s", p.lastStartErr)
}

// WaitForScaleDown waits until the number of running jobs is at most the number of wanted workers. After the timeout,
// it ends the surplus jobs, the youngest first, and waits until they have returned to the queue. requesterUID is the
// uid of the user who requested the scale-down, or nil. When ctx ends, WaitForScaleDown returns and ends no further
// job. If a runner does not answer, the error names the runner.
func (p *Pool) WaitForScaleDown(ctx context.Context, timeout time.Duration, requesterUID *int) error {
	deadline := time.After(timeout)
	for expired := false; ; {
		p.mu.Lock()
		running, changed, n := p.leases.leasesOldestFirstLocked(), p.leases.changeSignal, p.wantedWorkerCount
		p.mu.Unlock()
		if len(running) <= n {
			return nil
		}
		if expired {
			return p.requeueLeases(ctx, running[n:], requesterUID)
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

// requeueLeases ends the jobs of leases and returns them to the queue. It waits until the store has recorded this,
// except for jobs whose runner does not answer.
func (p *Pool) requeueLeases(ctx context.Context, leaseList []*lease, requesterUID *int) (err error) {
	for _, h := range leaseList {
		p.requestAttemptEnd(h, queue.EndStopped, requesterUID, "worker.stop")
	}
	unresponsive := map[*runnerConn]bool{} // runners that did not answer; requeueLeases does not wait for them again
	for _, h := range leaseList {
		conn := readWithLock(p, &h.runnerConn)
		if unresponsive[conn] {
			continue
		}
		if _, waitErr := p.awaitRunnerAnswer(ctx, h, nil); waitErr != nil {
			err, unresponsive[conn] = waitErr, true
		}
	}
	return err
}

// IsStopping reports whether Stop was called. From that time on, no job starts.
func (p *Pool) IsStopping() bool { return readWithLock(p, &p.stopRequested) }

// Stop ends the pool's work. The pool claims no further job, and running jobs may finish within the timeout. Stop ends
// paused jobs immediately, because they would not finish. After the timeout, it ends the remaining jobs and returns
// them to the queue. killGrace is the longest time between SIGTERM and SIGKILL. Finally it ends the runners. If a
// runner does not answer, Stop kills it with all its jobs. The caller must cancel the context of Run after Stop has
// returned.
func (p *Pool) Stop(ctx context.Context, timeout, killGrace time.Duration) {
	p.mu.Lock()
	p.stopRequested, p.maxKillGrace = true, killGrace
	// End paused jobs now, because they would not finish.
	paused := p.leases.selectLeasesLocked(func(h *lease) bool { return h.hasStarted() && p.isJobPausedLocked(h) })
	p.mu.Unlock()
	p.SetWantedWorkerCount(0)
	for _, h := range paused {
		p.requestAttemptEnd(h, queue.EndStopped, nil, "")
	}
	if p.WaitForScaleDown(ctx, timeout, nil) != nil {
		p.killUnresponsiveRunners()
		p.WaitForScaleDown(ctx, killGrace, nil)
	}
	p.mu.Lock()
	clients := slices.Clone(p.runners.conns)
	for _, conn := range clients {
		conn.shutdownSent = true
	}
	p.mu.Unlock()
	for _, conn := range clients {
		conn.Send(&wire.Shutdown{})
	}
	timeUp := time.After(2 * time.Second)
	for _, conn := range clients {
		select {
		case <-conn.closedSignal:
		case <-timeUp: // stop waiting: the runner ends by itself when its jobs have ended
			return
		}
	}
}

// HastenStop makes a Stop that is in progress end all running jobs immediately. killGrace is the longest time between
// SIGTERM and SIGKILL.
func (p *Pool) HastenStop(ctx context.Context, killGrace time.Duration) {
	p.mu.Lock()
	p.maxKillGrace = min(p.maxKillGrace, killGrace)
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
	PID             int              // pid of the job's main process
	StartedAt       queue.UnixMillis // start time of the job
	LastHeartbeat   time.Time        // time of the last message from the worker's runner
	// the runner is disconnected, does not answer, or has sent nothing for Config.WorkerStaleAfter
	Stale bool
	// Stuck means that an ended job still occupies the worker, because the process with the pid in PID survives SIGKILL.
	Stuck   bool
	Surplus bool // the worker will end with its job, because there are more workers than wanted
	Paused  bool // the worker's job is paused, individually or because all jobs are paused
}

// ListWorkers returns the status of all workers: those that run a job and those that are idle.
func (p *Pool) ListWorkers(ctx context.Context) []WorkerStatus {
	p.checkSilentRunnersAlive(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	var workers []WorkerStatus
	busy := map[string]bool{}
	for _, h := range p.leases.leasesOldestFirstLocked() {
		if !h.hasStarted() || h.attempt.workerID == "" {
			continue
		}
		busy[h.attempt.workerID] = true
		w := WorkerStatus{
			ID: h.attempt.workerID, JobID: h.job.ID, RestrictedToUID: h.job.RestrictedToUID(),
			PID: h.attempt.pid, StartedAt: h.attempt.startedAt,
			LastHeartbeat: h.lastMessageAt, Stale: true, Surplus: len(workers) >= p.wantedWorkerCount,
			Paused: p.isJobPausedLocked(h),
		}
		if h.runnerConn != nil {
			stale := deadlineAfter(h.runnerConn.lastMessageAt, p.cfg.WorkerStaleAfter())
			w.LastHeartbeat, w.Stale = h.runnerConn.lastMessageAt, h.runnerConn.state == connUnresponsive || stale.hasPassed(now)
		}
		workers = append(workers, w)
	}
	for _, conn := range p.runners.conns {
		for _, a := range conn.stuckAttempts[:p.runnerStuckWorkerCountLocked(conn)] {
			id := runner.WorkerName(conn.RunnerDir, a.TableSlot)
			busy[id] = true
			workers = append(workers, WorkerStatus{
				ID: id, PID: int(a.PID), StartedAt: queue.UnixMillis(a.StartedAtMillis), LastHeartbeat: conn.lastMessageAt,
				Stuck: true,
			})
		}
	}
	for slot := int64(1); len(workers) < p.wantedWorkerCount; slot++ {
		if id := runner.WorkerSlotName(slot); !busy[id] {
			workers = append(workers, WorkerStatus{ID: id, LastHeartbeat: time.Now(), Paused: p.allJobsPaused})
		}
	}
	return workers
}

// BusyWorkerCount returns how many workers run a job or are occupied by a process that survives SIGKILL. It
// uses the last reports of the runners.
func (p *Pool) BusyWorkerCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.stuckWorkerCountLocked()
	for _, h := range p.leases.byID {
		if h.hasStarted() {
			n++
		}
	}
	return n
}
