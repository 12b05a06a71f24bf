package worker

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// runners contains the runners of this service. Connected runners are in conns, and runners that are not connected are
// in contactsByDir. The pool's mu guards all fields.
type runners struct {
	cfg *Config
	// connections to runners; the last one gets new jobs if it is connCurrent
	conns                   []*runnerConn
	contactsByDir           map[string]*runnerContact // runners that are not connected, by directory
	connectedSignal         chan struct{}             // closed when a runner connects, and then replaced by a new channel
	isSpawningCurrentRunner bool                      // a runner for new jobs is being started
	lastSpawnErr            error                     // error of the last try to start a runner for new jobs
}

// runnerConn is a connected runner.
type runnerConn struct {
	*runner.Client
	closedSignal chan struct{} // closed when the connection has ended

	// The pool's mu guards all fields below.

	state connState
	// livenessIntervalStartedAt is the time of the last message or of the last failed liveness check. The next check is
	// HeartbeatInterval later.
	livenessIntervalStartedAt time.Time
	lastMessageAt             time.Time // time of the last message
	isCheckingLiveness        bool      // a liveness check is in progress
	shutdownSent              bool      // a Shutdown was sent to the runner
	// user whose separate runner this is; nil if it is not the separate runner of a user
	isolatedUser  *isolatedUser
	stuckAttempts []wire.Attempt      // ended attempts whose processes survive SIGKILL and occupy workers
	lastSentSetup wire.RunnerSettings // the Setup frame that was sent last
}

// connState is the state of a connected runner. It determines whether the runner gets new jobs. A runner starts as
// connCurrent or connRestricted:
//
//	current      → other         another runner replaces it as the current one
//	current      → unresponsive  it does not answer a liveness check
//	other        → unresponsive  it does not answer a liveness check
//	unresponsive → current       it answers again, can take new jobs, and there is no current runner
//	unresponsive → other         it answers again, and another runner takes new jobs
//
// Any runner can be dismissed, regardless of its state, because Stop dismisses all runners.
type connState uint8

const (
	connRestricted   connState = iota // the runner answers, but gets no new jobs, or only those of one user
	connCurrent                       // the runner for new jobs
	connUnresponsive                  // the runner did not answer the last liveness check, so it gets no new jobs
)

// newRunnerConn returns a runnerConn for a connection on which the runner has just answered.
func newRunnerConn(c *runner.Client, initialState connState) *runnerConn {
	now := time.Now()
	return &runnerConn{Client: c, state: initialState, livenessIntervalStartedAt: now, lastMessageAt: now,
		closedSignal: make(chan struct{})}
}

// currentRunnerLocked returns the runner for new jobs, or nil if none exists.
func (r *runners) currentRunnerLocked() *runnerConn {
	if n := len(r.conns); n > 0 && r.conns[n-1].state == connCurrent {
		return r.conns[n-1]
	}
	return nil
}

// addConnLocked adds a connection and wakes callers that wait for a connection. If conn is current (the runner for new
// jobs), the previous current runner gets no more new jobs.
func (r *runners) addConnLocked(conn *runnerConn) {
	if conn.state == connCurrent {
		for _, other := range r.conns {
			if other.state == connCurrent {
				other.state = connRestricted
			}
		}
		r.conns = append(r.conns, conn)
	} else {
		r.conns = append([]*runnerConn{conn}, r.conns...)
	}
	close(r.connectedSignal)
	r.connectedSignal = make(chan struct{})
}

// removeConnLocked removes a connection that has ended.
func (r *runners) removeConnLocked(conn *runnerConn) {
	r.conns = slices.DeleteFunc(r.conns, func(c *runnerConn) bool { return c == conn })
	conn.unlinkIsolatedUserLocked()
}

// canTakeNewJobs reports whether a runner that an earlier service started can get new jobs. Such a runner must have the
// version of this service, and must not be the separate runner of one job. Its directory and its job_tmpdir must be
// those that the settings require. A runner that this service starts needs no check; it may have another version,
// because the program on disk may be newer than this process.
func (r *runners) canTakeNewJobs(c *runner.Client) bool {
	return c.HelloReply.RunnerVersion == r.cfg.ServiceVersion && !runner.IsIsolatedRunnerDir(c.RunnerDir) &&
		filepath.Dir(c.RunnerDir) == r.cfg.RunnerLocation.DirForNewRunners() &&
		r.cfg.RunnerLocation.RunnerHasCurrentJobTmpdir(c.RunnerDir)
}

// needsCurrentRunnerLocked reports whether a runner for new jobs must be started, because none exists and none is
// expected soon.
func (r *runners) needsCurrentRunnerLocked() bool {
	now := time.Now()
	for _, c := range r.contactsByDir {
		if (c.origin == contactLostCurrentRunner || c.origin.existedAtStart()) && !c.wasFoundDead &&
			!c.unreachableDeadline(unreachableRunnerTimeout).hasPassed(now) {
			return false
		}
	}
	return r.currentRunnerLocked() == nil && !r.isSpawningCurrentRunner
}

// hasUnadoptedRunnerLocked reports whether any runner that existed at the start of the service is neither
// connected nor recovered yet.
func (r *runners) hasUnadoptedRunnerLocked() bool {
	for _, c := range r.contactsByDir {
		if c.origin.existedAtStart() {
			return true
		}
	}
	return false
}

// appendLeaseRunnerDirsLocked appends to dirs the directories of all runners that may have jobs that this service has
// claimed.
func (r *runners) appendLeaseRunnerDirsLocked(dirs []string) []string {
	for _, conn := range r.conns {
		if !conn.shutdownSent {
			dirs = append(dirs, conn.RunnerDir)
		}
	}
	for dir, c := range r.contactsByDir {
		if c.origin != contactFoundUnrecorded {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// unreachableRunnerDirsLocked returns the directories of runners to which the pool has tried to connect for at
// least the given time.
func (r *runners) unreachableRunnerDirsLocked(minDuration time.Duration) (dirs []string) {
	now := time.Now()
	for dir, c := range r.contactsByDir {
		if !c.wasFoundDead && c.unreachableDeadline(minDuration).hasPassed(now) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// markUnresponsiveLocked marks a runner as unresponsive. New jobs go to another runner.
func (r *runners) markUnresponsiveLocked(conn *runnerConn) {
	if isChannelClosed(conn.closedSignal) {
		return
	}
	conn.livenessIntervalStartedAt = time.Now() // delays the next liveness check
	if conn.state != connUnresponsive {
		conn.state = connUnresponsive
		conn.unlinkIsolatedUserLocked()
		r.cfg.Log.Error("the runner with this pid does not answer; it keeps its jobs, and new jobs go to another runner; to "+
			"see how to end it: queuectl doctor", "runner", conn.HelloReply.RunnerPID)
	}
}

// markAliveLocked records that a runner is alive. It reports whether the runner was unresponsive before.
func (r *runners) markAliveLocked(conn *runnerConn) bool {
	if isChannelClosed(conn.closedSignal) {
		return false
	}
	wasUnresponsive := conn.state == connUnresponsive
	conn.livenessIntervalStartedAt = time.Now()
	conn.lastMessageAt = conn.livenessIntervalStartedAt
	if wasUnresponsive {
		conn.state = connRestricted
		if r.currentRunnerLocked() == nil && !r.isSpawningCurrentRunner && r.canTakeNewJobs(conn.Client) {
			conn.state = connCurrent
			r.conns = append(slices.DeleteFunc(r.conns, func(c *runnerConn) bool { return c == conn }), conn)
		}
		r.cfg.Log.Info("the runner answers again", "runner", conn.HelloReply.RunnerPID)
	}
	return wasUnresponsive
}

// setStuckAttemptsLocked records which ended attempts still occupy workers of a runner, because processes of these
// attempts survive SIGKILL.
func (r *runners) setStuckAttemptsLocked(conn *runnerConn, attempts []wire.Attempt) {
	for _, was := range conn.stuckAttempts {
		if !slices.ContainsFunc(attempts, func(a wire.Attempt) bool { return a.Lease == was.Lease }) {
			r.cfg.Log.Info("the processes of an ended job that survived SIGKILL have ended now, so their worker can run jobs "+
				"again", "job", was.Seq, "runner", conn.HelloReply.RunnerPID)
		}
	}
	conn.stuckAttempts = attempts
}

// livenessCheckDueLocked returns when the runner needs a liveness check: one interval after livenessIntervalStartedAt.
func (conn *runnerConn) livenessCheckDueLocked(interval time.Duration) deadline {
	return deadlineAfter(conn.livenessIntervalStartedAt, interval)
}

// unlinkIsolatedUserLocked handles that a runner can get no more jobs. If the runner is the separate runner of a user,
// the user's next jobs get another separate runner.
func (conn *runnerConn) unlinkIsolatedUserLocked() {
	if conn.isolatedUser != nil && conn.isolatedUser.conn == conn {
		conn.isolatedUser.conn = nil
	}
}

// ResendRunnerSetup sends the current settings to all runners, after a setting has changed.
func (p *Pool) ResendRunnerSetup() {
	p.mu.Lock()
	for _, conn := range p.runners.conns {
		conn.lastSentSetup = wire.RunnerSettings{}
	}
	p.mu.Unlock()
	p.sendChangedRunnerSetup()
}

// sendChangedRunnerSetup sends each runner its settings, such as the number of its workers, if they have changed. A
// runner that gets no new jobs keeps at least as many workers as it needs for its present jobs. The runner for new jobs
// gets the workers that remain.
func (p *Pool) sendChangedRunnerSetup() {
	p.mu.Lock()
	defer p.mu.Unlock()
	usedElsewhere := 0
	for _, h := range p.leases.byID {
		if (h.runnerConn == nil || h.runnerConn.state != connCurrent) && (h.hasStarted() || h.runnerConn != nil) {
			usedElsewhere++
		}
	}
	for _, conn := range p.runners.conns {
		if conn.state != connCurrent {
			usedElsewhere += p.runnerStuckWorkerCountLocked(conn)
		}
	}
	for _, conn := range p.runners.conns {
		n := usedElsewhere
		switch {
		case runner.IsIsolatedRunnerDir(conn.RunnerDir):
			n = 1
		case conn.state == connCurrent:
			n = max(0, p.wantedWorkerCount-usedElsewhere)
		case conn.isolatedUser != nil:
			n = p.wantedWorkerCount
		}
		setup := wire.RunnerSettings{WorkerCount: int64(n), SettleDelay: p.cfg.SettleDelay(),
			StopTimeout: p.cfg.StopTimeout()}
		if setup != conn.lastSentSetup {
			conn.lastSentSetup = setup
			conn.Send(&setup)
		}
	}
}

// dismissIdleRunners ends runners that get no new jobs and have finished their jobs. Such runners are separate runners
// of one job or user, and runners with another version or other settings than the runner for new jobs. See
// docs/decisions/0051.
func (l *poolLoop) dismissIdleRunners() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.runners.conns {
		if conn.state != connRestricted || conn.shutdownSent || l.runnerStuckWorkerCountLocked(conn) > 0 ||
			len(l.storeSession.pendingAcks[conn]) > 0 || conn.isolatedUser != nil &&
			time.Since(conn.isolatedUser.runnerLastUsedAt) < userRunnerIdleTimeout {
			continue
		}
		if !l.leases.anyLeaseOnRunnerLocked(conn) {
			conn.unlinkIsolatedUserLocked()
			conn.shutdownSent = true
			conn.Send(&wire.Shutdown{})
		}
	}
}

// RunnerConnectedSignal returns a channel that is closed when a runner connects. A caller that could not read from
// a runner, because the connection was lost, can try again then.
func (p *Pool) RunnerConnectedSignal() <-chan struct{} {
	return readWithLock(p, &p.runners.connectedSignal)
}

// checkSilentRunnersAlive checks, for all runners that have sent no message for a while, that they are alive. It checks
// these runners concurrently, and waits at most for silentRunnerCheckTimeout.
func (p *Pool) checkSilentRunnersAlive(ctx context.Context) {
	p.mu.Lock()
	now := time.Now()
	clients := slices.DeleteFunc(slices.Clone(p.runners.conns), func(conn *runnerConn) bool {
		return conn.state == connUnresponsive || !conn.livenessCheckDueLocked(p.cfg.HeartbeatInterval()).hasPassed(now)
	})
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, silentRunnerCheckTimeout)
	defer cancel()
	p.pingRunners(ctx, clients)
}

// pingRunners checks concurrently that runners are alive. The result contains, in the order of conns, whether each
// runner has answered.
func (p *Pool) pingRunners(ctx context.Context, conns []*runnerConn) []bool {
	alive := make([]bool, len(conns))
	var pings sync.WaitGroup
	for i, conn := range conns {
		pings.Go(func() { alive[i] = p.pingRunner(ctx, conn) })
	}
	pings.Wait()
	return alive
}

// pingRunner checks that a runner is alive, and reports whether it answered. It sends a ReadOutput request for a lease
// that does not exist; apart from the answer, such a request has no effect.
func (p *Pool) pingRunner(ctx context.Context, conn *runnerConn) bool {
	_, err := conn.ReadOutput(ctx, wire.Lease{}, [2]int64{}, nil)
	if err != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runners.markAliveLocked(conn) {
		p.wakeLoop()
	}
	return true
}

// CheckRunnersAlive checks that all runners are alive. It returns the pids of the runners that answered within
// the timeout, and of those that did not.
func (p *Pool) CheckRunnersAlive(timeout time.Duration) (responsivePIDs, unresponsivePIDs []int64) {
	p.mu.Lock()
	clients := slices.Clone(p.runners.conns)
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for i, alive := range p.pingRunners(ctx, clients) {
		if alive {
			responsivePIDs = append(responsivePIDs, clients[i].HelloReply.RunnerPID)
		} else {
			unresponsivePIDs = append(unresponsivePIDs, clients[i].HelloReply.RunnerPID)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, dir := range p.runners.unreachableRunnerDirsLocked(timeout) {
		unresponsivePIDs = append(unresponsivePIDs, runner.LivingRunnerPID(dir))
	}
	return responsivePIDs, unresponsivePIDs
}

// PurgeOutputs deletes output files that only runners have the rights to delete. For each directory of
// runners, it uses the newest runner that answers. It returns true if this succeeded for all directories,
// and false if no runner is connected.
func (p *Pool) PurgeOutputs(ctx context.Context, outputRefs []string) bool {
	p.mu.Lock()
	clients := slices.Clone(p.runners.conns)
	p.mu.Unlock()
	purged := map[string]bool{} // whether a runner has deleted the files, by the runner's parent directory
	for _, conn := range slices.Backward(clients) {
		root := filepath.Dir(conn.RunnerDir)
		timeoutCtx, cancel := context.WithTimeout(ctx, outputPurgeTimeout)
		purged[root] = purged[root] || conn.PurgeOutputs(timeoutCtx, outputRefs) == nil
		cancel()
	}
	return len(purged) > 0 && !slices.Contains(slices.Collect(maps.Values(purged)), false)
}

// ResourceLimitEnforcements returns how the runner for new jobs enforces the resource limits of jobs. It waits
// until this runner is connected. ok is false if ctx ends first.
func (p *Pool) ResourceLimitEnforcements(ctx context.Context) (enforcements []queue.LimitEnforcement, ok bool) {
	for {
		p.mu.Lock()
		conn, connected := p.runners.currentRunnerLocked(), p.runners.connectedSignal
		p.mu.Unlock()
		if conn != nil {
			for _, l := range conn.HelloReply.Enforcements {
				enforcements = append(enforcements, queue.LimitEnforcement{LimitField: l.LimitName,
					Extent:    queue.EnforcementExtent(l.EnforcementExtent),
					Mechanism: l.Mechanism})
			}
			return enforcements, true
		}
		select {
		case <-connected:
		case <-ctx.Done():
			return nil, false
		}
	}
}
