package worker

import (
	"errors"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/store"
)

// This file starts separate runners for jobs that may harm other jobs.
//
// If a runner dies, any of its jobs may have killed it. So each of these jobs is a suspect: its next attempt runs in a
// separate runner. If the separate runner dies too, only this job can be the cause.
//
// The start of a job can hang, for example because access to its program hangs, and thereby delay the jobs of other
// users. If this has happened repeatedly to jobs of one user, all jobs of this user run in a separate runner.

// isolationState contains what the pool knows about suspects (jobs whose last runner died) and about users whose jobs
// need separate runners. Only Run's goroutine uses it.
type isolationState struct {
	isolatedUsers           map[int]*isolatedUser // users whose starts have hung, by uid
	isSpawningSuspectRunner bool                  // a separate runner for a suspect is being started
	// spawnRetryDelay is how long suspects (jobs whose last runner died) must wait after the next failed start of a
	// separate runner. Each failure doubles this delay.
	spawnRetryDelay    time.Duration
	nextSuspectStartAt time.Time // earliest time at which the next suspect (see maxConcurrentSuspectJobs) may start
	lastPostponedUntil time.Time // time at which the job that was postponed last may be claimed again
}

// dispatchClaimedJobs sends claimed jobs to runners. Suspects (jobs whose last runner died) go to separate runners,
// jobs of users whose jobs have hung at their start to the separate runner of their user, and all other jobs to the
// runner for new jobs. Jobs that may not start on this node are not sent. For jobs that need the results of their
// dependencies, dispatchClaimedJobs first reads these results. If allResultsStored is true, all earlier results of
// attempts are stored, and dispatchClaimedJobs sends the pending acknowledgements together with the jobs.
func (l *poolLoop) dispatchClaimedJobs(jobs []queue.Job, allResultsStored bool) {
	regular := jobs[:0]
	var suspects []queue.Job
	byOwner := map[*isolatedUser][]queue.Job{}
	for i := range jobs {
		j := &jobs[i]
		if err := l.cfg.CheckJobMayStart(j); err != nil {
			l.settleForbiddenJob(j, err)
		} else if j.ParentCount > 0 && j.DependencyResults == nil {
			l.readDependencyResults(*j)
		} else if j.NeedsIsolation {
			suspects = append(suspects, *j)
		} else if o := l.isolatedUserOf(j); o != nil {
			byOwner[o] = append(byOwner[o], *j)
		} else {
			regular = append(regular, *j)
		}
	}
	l.sendToCurrentRunner(regular, allResultsStored)
	if len(suspects) > 0 {
		l.startSuspectJobs(suspects)
	}
	for o, list := range byOwner {
		l.sendToUserRunner(o, list)
	}
}

// ErrJobNeedsOtherNode means that a job cannot start on this node, but can start on other nodes that share the queue.
var ErrJobNeedsOtherNode = errors.New("the job cannot start on the node that tried last, and waits for another node")

// settleForbiddenJob ends the lease of a job that may not start on this node. If cause is ErrJobNeedsOtherNode, the
// job waits for another node. For any other cause, the job is held until a user releases it.
func (l *poolLoop) settleForbiddenJob(j *queue.Job, cause error) {
	end, text := queue.EndAccountChanged, cause.Error()
	if errors.Is(cause, ErrJobNeedsOtherNode) {
		end, text = queue.EndResourceShortage, fmt.Sprintf("node %q: %v", l.cfg.NodeName, cause)
	}
	d := queue.DecideAfterAttempt(j, queue.AttemptOutcome{EndCause: end, Error: text}, l.cfg.RetryPolicy())
	l.storeSession.addSettlement(store.Settlement{Lease: j.Lease(), Decision: d})
	if end == queue.EndAccountChanged {
		l.cfg.Log.Warn("a job is held, because the uid of its owner belongs to another account now; see: queuectl doctor",
			"job", j.ID, "reason", d.Reason, "error", cause)
	}
	l.wakeLoop()
}

// These constants limit how many suspects (jobs whose last runner died) run at the same time, and how often the pool
// tries to start them.
const (
	// maxConcurrentSuspectJobs is the maximum number of suspects that run concurrently. Each suspect needs a runner
	// process of 11 MB and, if root runs the runner, also a watchdog process. When a runner with thousands of workers
	// dies, there are thousands of suspects. See docs/decisions/0050.
	maxConcurrentSuspectJobs = 16
	// suspectReclaimInterval is the minimum time between the moments at which one postponed suspect and the next one may
	// be claimed again. Without this interval, one claim could return more suspects than can be started.
	suspectReclaimInterval = time.Second / maxConcurrentSuspectJobs
	// minPostponeDelay is the minimum time for which a job is postponed.
	minPostponeDelay = time.Second
)

// startSuspectJobs starts a separate runner for each suspect (a job whose last runner died), one after the other. It
// postpones suspects that exceed maxConcurrentSuspectJobs.
func (l *poolLoop) startSuspectJobs(suspects []queue.Job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range suspects {
		if cause := l.suspectLimitErrorLocked(); cause != nil {
			l.postponeJobs(suspects[i:], cause)
			break
		}
		l.leases.addLeaseLocked(&suspects[i], phaseAwaitingRunner)
	}
	l.spawnSuspectRunnerLocked()
}

// spawnSuspectRunnerLocked starts a separate runner for the next waiting suspect (a job whose last runner died). It
// does nothing while a runner for another suspect is being started.
func (l *poolLoop) spawnSuspectRunnerLocked() {
	if l.isolation.isSpawningSuspectRunner {
		return
	}
	for _, h := range l.leases.leasesOldestFirstLocked() {
		if h.phase == phaseAwaitingRunner && h.job.NeedsIsolation {
			l.isolation.isSpawningSuspectRunner = true
			l.spawnRunner(runnerForSuspectJob, func(conn *runnerConn, err error) {
				l.handleSuspectRunnerSpawnedLocked(h, conn, err)
			})
			return
		}
	}
}

func isSuspect(j *queue.Job) bool { return j.NeedsIsolation }

// suspectLimitErrorLocked returns the reason why no further suspect (a job whose last runner died) may start now, or
// nil if a further suspect may start.
func (l *poolLoop) suspectLimitErrorLocked() error {
	if time.Now().Before(l.isolation.nextSuspectStartAt) {
		return errors.New("the job waits for a separate runner, because its last runner died; the service could " +
			"not start the separate runner yet; if this lasts, see the log of the service")
	}
	n := len(l.leases.leasesAwaitingRunnerLocked(isSuspect))
	for _, conn := range l.runners.conns {
		if runner.IsIsolatedRunnerDir(conn.RunnerDir) && !conn.shutdownSent {
			n++
		}
	}
	if n >= maxConcurrentSuspectJobs {
		return fmt.Errorf("the job waits for a separate runner, because its last runner died; all %d separate runners are "+
			"in use; the job starts when one is free", n)
	}
	return nil
}

// handleSuspectRunnerSpawnedLocked sends a suspect (a job whose last runner died) to the runner that was started for
// it. If err is not nil, no runner could be started. Then handleSuspectRunnerSpawnedLocked postpones all waiting
// suspects, and the pool claims no jobs for a while. The suspects wait longer than the pool, so that the next claims
// get other jobs.
func (l *poolLoop) handleSuspectRunnerSpawnedLocked(h *lease, conn *runnerConn, err error) {
	l.isolation.isSpawningSuspectRunner = false
	if err == nil {
		l.isolation.spawnRetryDelay = minShortagePause
		if h.phase == phaseAwaitingRunner {
			l.sendToSeparateRunnerLocked(h, conn)
		}
	} else if failed := l.leases.endLeasesAwaitingRunnerLocked(isSuspect); len(failed) > 0 {
		l.pauseClaimsLocked(err.Error())
		l.isolation.nextSuspectStartAt = l.claimsPausedUntil.Add(l.isolation.spawnRetryDelay)
		l.isolation.spawnRetryDelay = min(2*l.isolation.spawnRetryDelay, maxShortagePause)
		l.Go(func() { // in the background, since logging may block and the caller holds mu
			l.cfg.Log.Warn("could not start a separate runner for a job whose runner died; trying again",
				"job", failed[0].ID, "error", err)
		})
		l.postponeJobs(failed, err)
	}
	l.spawnSuspectRunnerLocked()
}

// sendToSeparateRunnerLocked sends a job to the separate runner that was started for it. It returns the job to the
// queue if no job may start now, for example during a drain.
func (l *poolLoop) sendToSeparateRunnerLocked(h *lease, conn *runnerConn) {
	if !l.mayStartJobsLocked() {
		l.returnJobToQueueLocked(h)
		return
	}
	if !h.advancePhaseLocked(eventSent) {
		return
	}
	h.assignToRunnerLocked(conn)
	conn.Send(l.appendStartFramesLocked(nil, &h.job)...)
}

// postponeJobs returns jobs to the queue with a delay, during which they cannot be claimed. Without the delay, the next
// claim would return the same jobs again instead of other jobs.
func (l *poolLoop) postponeJobs(jobs []queue.Job, cause error) {
	for i := range jobs {
		j := &jobs[i]
		d := queue.DecideAfterAttempt(j, queue.AttemptOutcome{EndCause: queue.EndNeverStarted, Error: cause.Error()},
			l.cfg.RetryPolicy())
		// Record the reason "shortage", so that users see why the job waits. Because the cause is EndNeverStarted and not
		// EndShortage, this delay does not count toward MaxShortagesInRow: the job has not caused the delay.
		d.Reason = queue.ReasonResourceShortage
		d.StartDelay = l.isolation.nextPostponeDelay(time.Now())
		l.storeSession.addSettlement(store.Settlement{Lease: j.Lease(), Decision: d})
	}
	l.wakeLoop()
}

// nextPostponeDelay returns how long the next job to postpone must wait. This job may be claimed again at least
// suspectReclaimInterval later than the job that was postponed before it.
func (i *isolationState) nextPostponeDelay(now time.Time) time.Duration {
	i.lastPostponedUntil = i.lastPostponedUntil.Add(suspectReclaimInterval)
	for _, earliest := range []time.Time{now.Add(minPostponeDelay), i.nextSuspectStartAt} {
		if i.lastPostponedUntil.Before(earliest) {
			i.lastPostponedUntil = earliest
		}
	}
	return i.lastPostponedUntil.Sub(now)
}

// These constants limit the separate runners of users whose jobs hang at their start.
const (
	hungStartsBeforeIsolation     = 2           // a user with this many hung starts gets a separate runner
	maxIsolatedUsers              = 16          // maximum number of users with a separate runner at the same time
	maxUnresponsiveRunnersPerUser = 2           // a user with this many unresponsive separate runners gets no further one
	hungStartRetention            = time.Hour   // a user's hung starts are forgotten this long after the last one
	userRunnerIdleTimeout         = time.Minute // a separate runner ends after this time without a job
)

// isolatedUser is a user with jobs whose programs have hung at their start. The pool's mu guards conn. Only
// Run's goroutine uses the other fields.
type isolatedUser struct {
	uid              int
	hungStartCount   int         // number of starts that hung
	lastHungStartAt  time.Time   // time of the last hung start
	conn             *runnerConn // the user's separate runner; nil if it has none
	isSpawningRunner bool        // a separate runner for this user is being started
	runnerLastUsedAt time.Time   // when conn was last used
}

// recordHungStart records that the start of a job's program has hung and delayed other jobs.
func (l *poolLoop) recordHungStart(j *queue.Job) {
	if !l.cfg.RunnerLocation.RunnersRunAsRoot() {
		return // all jobs run as one account, so they need no separate runners
	}
	uid := l.cfg.Account.JobUID(j)
	o := l.isolation.isolatedUsers[uid]
	if o == nil {
		o = &isolatedUser{uid: uid}
		l.isolation.isolatedUsers[uid] = o
	}
	if o.hungStartCount++; o.hungStartCount == hungStartsBeforeIsolation {
		l.cfg.Log.Warn("a user's jobs hang when they start; they get a separate runner for a while", "uid", uid, "job", j.ID)
	}
	o.lastHungStartAt = time.Now()
}

// isolatedUserOf returns the user of a job if all jobs of this user must run in a separate runner, and
// otherwise nil.
func (l *poolLoop) isolatedUserOf(j *queue.Job) *isolatedUser {
	if len(l.isolation.isolatedUsers) == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, o := range l.isolation.isolatedUsers {
		if o.conn == nil && !o.isSpawningRunner && time.Since(o.lastHungStartAt) > hungStartRetention {
			delete(l.isolation.isolatedUsers, uid)
		}
	}
	if o := l.isolation.isolatedUsers[l.cfg.Account.JobUID(j)]; o != nil && o.hungStartCount >= hungStartsBeforeIsolation {
		return o
	}
	return nil
}

// sendToUserRunner sends jobs of one user to the user's separate runner. It starts the runner if necessary.
func (l *poolLoop) sendToUserRunner(user *isolatedUser, jobs []queue.Job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	others, unresponsive := 0, 0
	for _, other := range l.isolation.isolatedUsers {
		if other != user && (other.conn != nil || other.isSpawningRunner) {
			others++
		}
	}
	for _, conn := range l.runners.conns {
		if conn.isolatedUser == user && conn.state == connUnresponsive {
			unresponsive++
		}
	}
	var cause error
	switch {
	case user.conn != nil || user.isSpawningRunner:
	case others >= maxIsolatedUsers:
		cause = fmt.Errorf("the job waits for a separate runner, because jobs of its user hang when they start; all %d "+
			"runners for such users are in use; the job starts when one is free", others)
	case unresponsive >= maxUnresponsiveRunnersPerUser:
		cause = fmt.Errorf("the job waits, because %d runners that were started only for this user do not answer; see: "+
			"queuectl doctor", unresponsive)
	}
	if cause != nil {
		l.postponeJobs(jobs, cause)
		return
	}
	for i := range jobs {
		h := l.leases.addLeaseLocked(&jobs[i], phaseAwaitingRunner)
		if user.conn != nil {
			l.sendToSeparateRunnerLocked(h, user.conn)
		}
	}
	user.runnerLastUsedAt = time.Now()
	if user.conn == nil && !user.isSpawningRunner {
		user.isSpawningRunner = true
		l.spawnRunner(runnerForIsolatedUser, func(conn *runnerConn, err error) {
			l.handleUserRunnerSpawnedLocked(user, conn,
				err)
		})
	}
}

// handleUserRunnerSpawnedLocked sends the waiting jobs of a user to the runner that was started for them. If err is not
// nil, it postpones these jobs.
func (l *poolLoop) handleUserRunnerSpawnedLocked(user *isolatedUser, conn *runnerConn, err error) {
	user.isSpawningRunner, user.runnerLastUsedAt = false, time.Now()
	selects := func(j *queue.Job) bool { return !isSuspect(j) && l.cfg.Account.JobUID(j) == user.uid }
	if err == nil {
		user.conn, conn.isolatedUser = conn, user
		for _, h := range l.leases.leasesAwaitingRunnerLocked(selects) {
			l.sendToSeparateRunnerLocked(h, conn)
		}
	} else if failed := l.leases.endLeasesAwaitingRunnerLocked(selects); len(failed) > 0 {
		l.Go(func() { // in the background, since logging may block and the caller holds mu
			l.cfg.Log.Error("could not start a separate runner for a user's jobs; they are postponed",
				"uid", user.uid, "error", err)
		})
		l.postponeJobs(failed, err)
	}
}
