package worker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// This file handles runners that do not answer. Like any process, a runner may hang, for example because a signal has
// stopped it or because it waits for a disk. Every request to a runner therefore has a time limit. A runner that does
// not answer in time is called unresponsive, and new jobs go to another runner. When an unresponsive runner answers
// again, its jobs continue normally.

const (
	livenessCheckTimeout  = 2 * time.Second // time limit for the answer to a liveness check
	livenessCheckInterval = time.Second     // time between two liveness checks while a caller waits
	// startDeadlineMargin is the time between the start deadline of a job and the moment at which the pool checks whether
	// an unresponsive runner has started the job.
	startDeadlineMargin = time.Second
)

// needsLivenessCheckLocked reports whether the pool must check that a runner is alive when the runner has sent no
// message for a while. The check is necessary only for runners that have jobs or are unresponsive. See
// docs/decisions/0055.
func (l *poolLoop) needsLivenessCheckLocked(conn *runnerConn) bool {
	return !conn.isCheckingLiveness && (conn.state == connUnresponsive || l.leases.anyLeaseOnRunnerLocked(conn))
}

// startLivenessChecks starts the liveness checks that are due.
func (l *poolLoop) startLivenessChecks() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, conn := range l.runners.conns {
		if !l.needsLivenessCheckLocked(conn) || !conn.livenessCheckDueLocked(l.cfg.HeartbeatInterval()).hasPassed(now) {
			continue
		}
		conn.isCheckingLiveness = true
		l.Go(func() {
			l.checkRunnerAlive(l.ctx, conn)
			l.mu.Lock()
			defer l.mu.Unlock()
			conn.isCheckingLiveness = false
			l.wakeLoop()
		})
	}
}

// checkRunnerAlive checks that a runner answers. If the runner does not answer within livenessCheckTimeout,
// checkRunnerAlive marks it as unresponsive and returns false. If ctx ends first, checkRunnerAlive returns true.
func (p *Pool) checkRunnerAlive(ctx context.Context, conn *runnerConn) bool {
	timeoutCtx, cancel := context.WithTimeout(ctx, livenessCheckTimeout)
	defer cancel()
	if p.pingRunner(timeoutCtx, conn) || ctx.Err() != nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runners.markUnresponsiveLocked(conn)
	p.wakeLoop()
	return false
}

// returnExpiredLeases handles leases whose start deadlines have passed, and whose runner, at the given location, is
// unresponsive or disconnected. It returns the jobs that have not started to the queue. This is safe, because
// the runner refuses to start a job after its start deadline. returnExpiredLeases keeps the leases of jobs that the
// runner may have started, because the runner may still send their results.
func (l *poolLoop) returnExpiredLeases(location leaseLocation, expiredLeases []*lease) {
	leases := make([]wire.Lease, len(expiredLeases))
	for i, h := range expiredLeases {
		leases[i] = h.wireLease()
	}
	dirs, ok := l.possibleRunnerDirs(location)
	started := map[wire.Lease]bool{}
	for i := 0; ok && i < len(dirs); i++ {
		var inDir map[wire.Lease]bool
		inDir, ok = runner.ReadStartedAttempts(dirs[i], leases)
		maps.Copy(started, inDir)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, h := range expiredLeases {
		hasProcess, found := started[leases[i]]
		switch {
		case !h.phase.mayStart() || h.runnerConn != location.runnerConn: // the lease has changed in the meantime
		case hasProcess:
			h.advancePhaseLocked(eventFoundStarted)
			l.leases.notifyChangeLocked()
		case !found && h.phase != phaseAccepted && ok:
			l.returnJobToQueueLocked(h)
		default: // the runner's files cannot be read or do not name the process yet; check again later
			if found {
				h.advancePhaseLocked(eventAccepted)
			}
			h.claimedOrSentAt = time.Now().Add(-startDeadline)
		}
	}
}

// possibleRunnerDirs returns the directories of the runners that may have started the jobs of leases at a location.
// isComplete is true under three conditions: no runner outside dirs can have started these jobs, dirs is not empty, and
// no runner in dirs was found dead.
func (l *poolLoop) possibleRunnerDirs(location leaseLocation) (dirs []string, isComplete bool) {
	if location.runnerConn != nil {
		return []string{location.runnerDir}, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	isComplete = location.runnerDir != "" || !l.recovery.isRecordedDirMissing && !l.recovery.storeCopiedOrRestored &&
		len(l.recovery.uncertainRunnerDirs) == 0
	for dir, c := range l.runners.contactsByDir {
		if dir == location.runnerDir || location.runnerDir == "" && c.origin == contactFoundAtStart {
			dirs = append(dirs, dir)
			isComplete = isComplete && !c.wasFoundDead
		}
	}
	return dirs, isComplete && len(dirs) > 0
}

// awaitRunnerAnswer waits for a value from the channel or for the end of the lease. answered is false if the lease has
// ended before a value arrived. If the runner of the lease does not answer liveness checks, awaitRunnerAnswer returns
// an error that names the runner.
func (p *Pool) awaitRunnerAnswer(ctx context.Context, h *lease, answer <-chan error) (answered bool, err error) {
	for {
		select {
		case err := <-answer:
			return true, err
		case <-h.endStoredSignal:
			select {
			case err := <-answer:
				return true, err
			default:
				return false, nil
			}
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(livenessCheckInterval):
			if err := p.checkLeaseRunnerAlive(ctx, h); err != nil {
				return false, err
			}
		}
	}
}

// checkLeaseRunnerAlive returns an error if the runner of a lease does not answer a liveness check.
func (p *Pool) checkLeaseRunnerAlive(ctx context.Context, h *lease) error {
	p.mu.Lock()
	conn, dir := h.runnerConn, h.runnerDir
	now, unreachable := time.Now(), false
	for _, c := range p.runners.contactsByDir {
		if conn == nil && (c.runnerDir == dir || dir == "" && c.origin.existedAtStart()) {
			unreachable, dir = c.unreachableDeadline(livenessCheckTimeout).hasPassed(now), c.runnerDir
		}
	}
	p.mu.Unlock()
	if conn == nil {
		if !unreachable {
			return nil
		}
		return p.unresponsiveError(runner.LivingRunnerPID(dir), h)
	}
	if p.checkRunnerAlive(ctx, conn) {
		return ctx.Err()
	}
	if isChannelClosed(conn.closedSignal) {
		return nil // no error, because the pool will connect to the runner again or recover it
	}
	return p.unresponsiveError(conn.HelloReply.RunnerPID, h)
}

// unresponsiveError returns the error for a request about a lease whose runner does not answer.
func (p *Pool) unresponsiveError(runnerPID int64, h *lease) error {
	return queue.Errorf(queue.CodeUnavailable, "%s does not answer, so job %s cannot be reached; %s",
		RunnerDescription(runnerPID), h.job.ID, p.cfg.HungRunnerAdvice(runnerPID))
}

// RunnerDescription returns the name of a runner for messages, such as "the runner with pid 123". pid is 0 if the
// pid is unknown, because the service has never been connected to the runner.
func RunnerDescription(pid int64) string {
	if pid == 0 {
		return "a runner with an unknown pid"
	}
	return fmt.Sprintf("the runner with pid %d", pid)
}

// UnresponsiveRunnerPIDs returns the pids of the runners that are known not to answer. If the pid of a runner is
// unknown, the list contains 0.
func (p *Pool) UnresponsiveRunnerPIDs() (pids []int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.runners.conns {
		if conn.state == connUnresponsive {
			pids = append(pids, conn.HelloReply.RunnerPID)
		}
	}
	for _, dir := range p.runners.unreachableRunnerDirsLocked(livenessCheckTimeout) {
		pids = append(pids, runner.LivingRunnerPID(dir))
	}
	return pids
}

// RunnerSpawnError returns the reason why no runner for new jobs could be started: a runner.LauncherError, or
// the error of the last try. It returns nil if such a runner exists or the first try is still in progress.
func (p *Pool) RunnerSpawnError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runners.currentRunnerLocked() != nil {
		return nil
	}
	return cmp.Or(p.cfg.RunnerLocation.CheckLauncher(), p.runners.lastSpawnErr)
}

// killUnresponsiveRunners kills the runners that do not answer, with all their jobs. For the pool, these runners are
// then dead runners like any other, and it decides how their jobs ended.
func (p *Pool) killUnresponsiveRunners() {
	p.mu.Lock()
	var dirs []string
	for _, conn := range p.runners.conns {
		if conn.state == connUnresponsive {
			dirs = append(dirs, conn.RunnerDir)
		}
	}
	dirs = append(dirs, p.runners.unreachableRunnerDirsLocked(0)...)
	p.mu.Unlock()
	for _, dir := range dirs {
		p.cfg.Log.Error("ending a runner that does not answer, and its jobs", "dir", dir)
		if err := p.cfg.RunnerLocation.KillRunner(dir); err != nil {
			p.cfg.Log.Error("could not end a runner that does not answer; its jobs may still run, and the service takes "+
				"them over when it starts again",
				"dir", filepath.Base(dir), "error", err)
		}
	}
}
