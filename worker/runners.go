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

// runners contains the runners of this service. Connected ones are in clients, and those that are not
// connected are in contacts. The pool's mu guards all fields.
type runners struct {
	cfg           *Config
	clients       []*runnerConn             // connections to runners; the last one gets new jobs if it is connCurrent
	contacts      map[string]*runnerContact // runners that are not connected, by directory
	connectSignal chan struct{}             // closed when a runner connects, and then replaced by a new channel
	spawning      bool                      // a runner for new jobs is being started
	spawnErr      error                     // error of the last try to start a runner for new jobs
}

// runnerConn is a connected runner.
type runnerConn struct {
	*runner.Client
	closed chan struct{} // closed when the connection has ended

	// The pool's mu guards all fields below.

	state connState
	// lastCheckedAt is the time of the last message or of the last failed liveness check. The next check is
	// HeartbeatInterval later.
	lastCheckedAt time.Time
	lastMessageAt time.Time      // time of the last message
	checking      bool           // a liveness check is in progress
	dismissed     bool           // a Shutdown was sent to the runner
	user          *isolatedUser  // user whose separate runner this is; nil if it is not the separate runner of a user
	stuckAttempts []wire.Attempt // ended attempts whose processes survive SIGKILL and occupy workers
	sentSetup     wire.Setup     // the Setup frame that was sent last
}

// connState says whether a connected runner gets new jobs. A runner starts as connCurrent or
// connOther:
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
	connOther        connState = iota // the runner answers, but gets no new jobs, or only those of one user
	connCurrent                       // the runner for new jobs
	connUnresponsive                  // the runner did not answer the last liveness check, so it gets no new jobs
)

// newRunnerConn returns a runnerConn for a connection on which the runner has just answered.
func newRunnerConn(c *runner.Client, initial connState) *runnerConn {
	now := time.Now()
	return &runnerConn{Client: c, state: initial, lastCheckedAt: now, lastMessageAt: now, closed: make(chan struct{})}
}

// currentLocked returns the runner for new jobs, or nil if none exists.
func (r *runners) currentLocked() *runnerConn {
	if n := len(r.clients); n > 0 && r.clients[n-1].state == connCurrent {
		return r.clients[n-1]
	}
	return nil
}

// addLocked adds a connection and wakes callers that wait for one. If conn is current (the runner for new
// jobs), the previous current runner gets no more new jobs.
func (r *runners) addLocked(conn *runnerConn) {
	if conn.state == connCurrent {
		for _, other := range r.clients {
			if other.state == connCurrent {
				other.state = connOther
			}
		}
		r.clients = append(r.clients, conn)
	} else {
		r.clients = append([]*runnerConn{conn}, r.clients...)
	}
	close(r.connectSignal)
	r.connectSignal = make(chan struct{})
}

// removeLocked removes a connection that has ended.
func (r *runners) removeLocked(conn *runnerConn) {
	r.clients = slices.DeleteFunc(r.clients, func(c *runnerConn) bool { return c == conn })
	conn.unlinkUserLocked()
}

// canTakeNewJobs reports whether a runner that an earlier service started can get new jobs. It must have the
// version of this service, must not be the separate runner of one job, and must have the directory and the
// job_tmpdir that the settings require. A runner that this service starts needs no check; it may have another
// version, because the program on disk may be newer than this process.
func (r *runners) canTakeNewJobs(c *runner.Client) bool {
	return c.HelloReply.Version == r.cfg.Version && !runner.IsIsolated(c.Dir) &&
		filepath.Dir(c.Dir) == r.cfg.RunnerLocation.NewRunnersDir() && r.cfg.RunnerLocation.HasTmpdir(c.Dir)
}

// lacksCurrentLocked reports whether a runner for new jobs must be started, because none exists and none is
// expected soon.
func (r *runners) lacksCurrentLocked() bool {
	now := time.Now()
	for _, c := range r.contacts {
		if (c.origin == contactCurrent || c.origin.existedAtStart()) && !c.dead &&
			!c.unreachableDeadline(replaceRunnerAfter).passed(now) {
			return false
		}
	}
	return r.currentLocked() == nil && !r.spawning
}

// hasUnadoptedLocked reports whether any runner that existed at the start of the service is neither
// connected nor recovered yet.
func (r *runners) hasUnadoptedLocked() bool {
	for _, c := range r.contacts {
		if c.origin.existedAtStart() {
			return true
		}
	}
	return false
}

// leaseDirsLocked appends to dirs the directories of all runners that may have jobs that this service has
// claimed.
func (r *runners) leaseDirsLocked(dirs []string) []string {
	for _, conn := range r.clients {
		if !conn.dismissed {
			dirs = append(dirs, conn.Dir)
		}
	}
	for dir, c := range r.contacts {
		if c.origin != contactUnknown {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// unreachableForLocked returns the directories of runners to which the pool has tried to connect for at
// least the given time.
func (r *runners) unreachableForLocked(minDuration time.Duration) (dirs []string) {
	now := time.Now()
	for dir, c := range r.contacts {
		if !c.dead && c.unreachableDeadline(minDuration).passed(now) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// markUnresponsiveLocked marks a runner as unresponsive. New jobs go to another runner.
func (r *runners) markUnresponsiveLocked(conn *runnerConn) {
	if isClosed(conn.closed) {
		return
	}
	conn.lastCheckedAt = time.Now() // delays the next liveness check
	if conn.state != connUnresponsive {
		conn.state = connUnresponsive
		conn.unlinkUserLocked()
		r.cfg.Log.Error("the runner with this pid does not answer; it keeps its jobs, and new jobs go to another runner; to "+
			"see how to end it: queuectl doctor", "runner", conn.HelloReply.PID)
	}
}

// markAliveLocked records that a runner is alive. It reports whether the runner was unresponsive before.
func (r *runners) markAliveLocked(conn *runnerConn) bool {
	if isClosed(conn.closed) {
		return false
	}
	wasUnresponsive := conn.state == connUnresponsive
	conn.lastCheckedAt = time.Now()
	conn.lastMessageAt = conn.lastCheckedAt
	if wasUnresponsive {
		conn.state = connOther
		if r.currentLocked() == nil && !r.spawning && r.canTakeNewJobs(conn.Client) {
			conn.state = connCurrent
			r.clients = append(slices.DeleteFunc(r.clients, func(c *runnerConn) bool { return c == conn }), conn)
		}
		r.cfg.Log.Info("the runner answers again", "runner", conn.HelloReply.PID)
	}
	return wasUnresponsive
}

// setStuckLocked records which ended attempts still occupy workers of a runner, because processes of these
// attempts survive SIGKILL.
func (r *runners) setStuckLocked(conn *runnerConn, attempts []wire.Attempt) {
	for _, was := range conn.stuckAttempts {
		if !slices.ContainsFunc(attempts, func(a wire.Attempt) bool { return a.Lease == was.Lease }) {
			r.cfg.Log.Info("the processes of an ended job that survived SIGKILL have ended now, so their worker can run jobs "+
				"again", "job", was.Seq, "runner", conn.HelloReply.PID)
		}
	}
	conn.stuckAttempts = attempts
}

// checkDueLocked returns when the runner needs a liveness check: one interval after lastCheckedAt.
func (conn *runnerConn) checkDueLocked(interval time.Duration) deadline {
	return deadlineAfter(conn.lastCheckedAt, interval)
}

// unlinkUserLocked is called for a runner that may be the separate runner of a user and can get no more jobs.
// The user's next jobs get another separate runner.
func (conn *runnerConn) unlinkUserLocked() {
	if conn.user != nil && conn.user.conn == conn {
		conn.user.conn = nil
	}
}

// ResendSetup sends the current settings to all runners, after a setting has changed.
func (p *Pool) ResendSetup() {
	p.mu.Lock()
	for _, conn := range p.runners.clients {
		conn.sentSetup = wire.Setup{}
	}
	p.mu.Unlock()
	p.sendSetup()
}

// sendSetup sends each runner its settings, such as the number of its workers, if they have changed. A runner
// that gets no new jobs keeps at least as many workers as it needs for its jobs. The runner for new jobs gets
// the remaining workers.
func (p *Pool) sendSetup() {
	p.mu.Lock()
	defer p.mu.Unlock()
	usedElsewhere := 0
	for _, h := range p.leases.byLease {
		if (h.conn == nil || h.conn.state != connCurrent) && (h.hasStarted() || h.conn != nil) {
			usedElsewhere++
		}
	}
	for _, conn := range p.runners.clients {
		if conn.state != connCurrent {
			usedElsewhere += p.stuckWorkerCountOfLocked(conn)
		}
	}
	for _, conn := range p.runners.clients {
		n := usedElsewhere
		switch {
		case runner.IsIsolated(conn.Dir):
			n = 1
		case conn.state == connCurrent:
			n = max(0, p.wantedWorkers-usedElsewhere)
		case conn.user != nil:
			n = p.wantedWorkers
		}
		setup := wire.Setup{Workers: int64(n), SettleDelay: p.cfg.SettleDelay(), StopTimeout: p.cfg.StopTimeout()}
		if setup != conn.sentSetup {
			conn.sentSetup = setup
			conn.Send(&setup)
		}
	}
}

// dismissIdle ends runners that get no new jobs and have finished their jobs. These are separate runners of
// one job or user, and runners with another version or other settings than the runner for new jobs. See
// docs/decisions/0051.
func (l *loop) dismissIdle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.runners.clients {
		if conn.state != connOther || conn.dismissed || l.stuckWorkerCountOfLocked(conn) > 0 ||
			len(l.session.pendingAcks[conn]) > 0 || conn.user != nil &&
			time.Since(conn.user.lastUsedAt) < userRunnerIdleTimeout {
			continue
		}
		if !l.leases.anyHeldByLocked(conn) {
			conn.unlinkUserLocked()
			conn.dismissed = true
			conn.Send(&wire.Shutdown{})
		}
	}
}

// RunnerConnected returns a channel that is closed when a runner connects. A caller that could not read from
// a runner, because the connection was lost, can try again then.
func (p *Pool) RunnerConnected() <-chan struct{} { return lockedValue(p, &p.runners.connectSignal) }

// heartbeat concurrently checks the runners that have sent no message for a while. It waits at most for
// heartbeatTimeout.
func (p *Pool) heartbeat(ctx context.Context) {
	p.mu.Lock()
	now := time.Now()
	clients := slices.DeleteFunc(slices.Clone(p.runners.clients), func(conn *runnerConn) bool {
		return conn.state == connUnresponsive || !conn.checkDueLocked(p.cfg.HeartbeatInterval()).passed(now)
	})
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, heartbeatTimeout)
	defer cancel()
	p.pingAll(ctx, clients)
}

// pingAll checks concurrently that runners are alive. The result says for each runner whether it answered,
// in the order of clients.
func (p *Pool) pingAll(ctx context.Context, clients []*runnerConn) []bool {
	alive := make([]bool, len(clients))
	var pings sync.WaitGroup
	for i, conn := range clients {
		pings.Go(func() { alive[i] = p.ping(ctx, conn) })
	}
	pings.Wait()
	return alive
}

// ping checks that a runner is alive, and reports whether it answered. It sends a ReadOutput request for a
// lease that does not exist, which has no effect.
func (p *Pool) ping(ctx context.Context, conn *runnerConn) bool {
	_, err := conn.ReadOutput(ctx, wire.Lease{}, [2]int64{}, nil)
	if err != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runners.markAliveLocked(conn) {
		p.wake()
	}
	return true
}

// CheckRunners checks that all runners are alive. It returns the pids of the runners that answered within
// the timeout, and of those that did not.
func (p *Pool) CheckRunners(timeout time.Duration) (responsivePIDs, unresponsivePIDs []int64) {
	p.mu.Lock()
	clients := slices.Clone(p.runners.clients)
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for i, alive := range p.pingAll(ctx, clients) {
		if alive {
			responsivePIDs = append(responsivePIDs, clients[i].HelloReply.PID)
		} else {
			unresponsivePIDs = append(unresponsivePIDs, clients[i].HelloReply.PID)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, dir := range p.runners.unreachableForLocked(timeout) {
		unresponsivePIDs = append(unresponsivePIDs, runner.PIDOf(dir))
	}
	return responsivePIDs, unresponsivePIDs
}

// PurgeOutputs deletes output files that only runners have the rights to delete. For each directory of
// runners, it uses the newest runner that answers. It returns true if this succeeded for all directories,
// and false if no runner is connected.
func (p *Pool) PurgeOutputs(ctx context.Context, refs []string) bool {
	p.mu.Lock()
	clients := slices.Clone(p.runners.clients)
	p.mu.Unlock()
	purged := map[string]bool{} // whether a runner has deleted the files, by the runner's parent directory
	for _, conn := range slices.Backward(clients) {
		root := filepath.Dir(conn.Dir)
		timeoutCtx, cancel := context.WithTimeout(ctx, purgeTimeout)
		purged[root] = purged[root] || conn.PurgeOutputs(timeoutCtx, refs) == nil
		cancel()
	}
	return len(purged) > 0 && !slices.Contains(slices.Collect(maps.Values(purged)), false)
}

// LimitEnforcements returns how the runner for new jobs enforces the resource limits of jobs. It waits
// until this runner is connected. ok is false if ctx ends first.
func (p *Pool) LimitEnforcements(ctx context.Context) (enforcements []queue.Enforcement, ok bool) {
	for {
		p.mu.Lock()
		conn, connected := p.runners.currentLocked(), p.runners.connectSignal
		p.mu.Unlock()
		if conn != nil {
			for _, l := range conn.HelloReply.Enforcements {
				enforcements = append(enforcements, queue.Enforcement{Limit: l.Limit, Extent: queue.EnforcementExtent(l.Extent),
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
