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
// If a runner dies, any of its jobs may have killed it. So each of these jobs is a suspect: its next
// attempt runs in a separate runner. If the separate runner dies too, only this job can be the cause.
//
// If programs of a user's jobs have hung at their start, they have delayed other users. All jobs of this
// user then run in a separate runner.

// isolation contains what the pool knows about suspects and users whose jobs need separate runners. Only
// Run's goroutine uses it.
type isolation struct {
	users              map[int]*isolatedUser // users whose starts have hung, by uid
	spawningForSuspect bool                  // a separate runner for a suspect is being started
	// spawnPause is how long suspects must wait after the next failed start of a separate runner. Each
	// failure doubles it.
	spawnPause      time.Duration
	nextSuspectAt   time.Time // earliest time at which the next suspect may start
	lastPostponedTo time.Time // time at which the job that was postponed last may be claimed again
}

// startAll sends claimed jobs to runners. Suspects (jobs whose last runner died) go to separate runners, jobs
// of users whose starts have hung to the separate runner of their user, and all other jobs to the runner for
// new jobs. Jobs that may not start on this node are not sent. For jobs that need the results of their
// dependencies, startAll first reads these results. If allStored is true, all earlier results of attempts are
// stored, and startAll sends the pending acknowledgements together with the jobs.
func (l *loop) startAll(jobs []queue.Job, allStored bool) {
	regular := jobs[:0]
	var suspects []queue.Job
	byOwner := map[*isolatedUser][]queue.Job{}
	for i := range jobs {
		j := &jobs[i]
		if err := l.cfg.CheckStart(j); err != nil {
			l.settleForbidden(j, err)
		} else if j.ParentCount > 0 && j.DependencyResults == nil {
			l.readDeps(*j)
		} else if j.NeedsIsolation {
			suspects = append(suspects, *j)
		} else if o := l.isolatedUserOf(j); o != nil {
			byOwner[o] = append(byOwner[o], *j)
		} else {
			regular = append(regular, *j)
		}
	}
	l.startOnCurrent(regular, allStored)
	if len(suspects) > 0 {
		l.startSuspects(suspects)
	}
	for o, list := range byOwner {
		l.startForUser(o, list)
	}
}

// ErrWrongNode means that a job may not start on this node, but may start on other nodes of the queue.
var ErrWrongNode = errors.New("the job cannot start on the node that tried last, and waits for another node")

// settleForbidden ends the lease of a job that may not start on this node. If cause is ErrWrongNode, the
// job waits for another node. For any other cause, the job is held until a user releases it.
func (l *loop) settleForbidden(j *queue.Job, cause error) {
	end, text := queue.EndAccountChanged, cause.Error()
	if errors.Is(cause, ErrWrongNode) {
		end, text = queue.EndShortage, fmt.Sprintf("node %q: %v", l.cfg.Node, cause)
	}
	d := queue.Decide(j, queue.Outcome{EndCause: end, Error: text}, l.cfg.Policy())
	l.session.addSettlement(store.Settlement{Lease: j.Lease(), Decision: d})
	if end == queue.EndAccountChanged {
		l.cfg.Log.Warn("a job is held, because the uid of its owner belongs to another account now; see: queuectl doctor",
			"job", j.ID, "reason", d.Reason, "error", cause)
	}
	l.wake()
}

// These constants limit how many suspects run (jobs whose last runner died) and how often they are tried.
const (
	// maxSuspects is the maximum number of suspects that run concurrently. Each needs a runner process of 11 MB
	// and, if the runner is root's, also a watchdog. When a runner with thousands of workers dies, there are
	// thousands of suspects. See docs/decisions/0050.
	maxSuspects = 16
	// suspectInterval is the minimum time between the moments at which two postponed suspects may be claimed
	// again. So one claim does not return more suspects than can be started.
	suspectInterval = time.Second / maxSuspects
	// minPostponeDelay is the minimum time for which a job is postponed.
	minPostponeDelay = time.Second
)

// startSuspects starts a separate runner for each suspect, one after the other. It postpones suspects that
// exceed maxSuspects.
func (l *loop) startSuspects(suspects []queue.Job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range suspects {
		if cause := l.suspectLimitErrorLocked(); cause != nil {
			l.postpone(suspects[i:], cause)
			break
		}
		l.leases.addLocked(&suspects[i], phaseAwaitingRunner)
	}
	l.spawnForSuspectLocked()
}

// spawnForSuspectLocked starts a separate runner for the next waiting suspect. It does nothing while a
// runner for another suspect is being started.
func (l *loop) spawnForSuspectLocked() {
	if l.isolation.spawningForSuspect {
		return
	}
	for _, h := range l.leases.oldestFirstLocked() {
		if h.phase == phaseAwaitingRunner && h.job.NeedsIsolation {
			l.isolation.spawningForSuspect = true
			l.spawn(forSuspect, func(conn *runnerConn, err error) { l.suspectRunnerSpawnedLocked(h, conn, err) })
			return
		}
	}
}

func isSuspect(j *queue.Job) bool { return j.NeedsIsolation }

// suspectLimitErrorLocked returns the reason why no further suspect may start now, or nil if one may.
func (l *loop) suspectLimitErrorLocked() error {
	if time.Now().Before(l.isolation.nextSuspectAt) {
		return errors.New("the job waits for a separate runner, because its last runner died; the service could " +
			"not start the separate runner yet; if this lasts, see the log of the service")
	}
	n := len(l.leases.awaitingRunnerLocked(isSuspect))
	for _, conn := range l.runners.clients {
		if runner.IsIsolated(conn.Dir) && !conn.dismissed {
			n++
		}
	}
	if n >= maxSuspects {
		return fmt.Errorf("the job waits for a separate runner, because its last runner died; all %d separate runners are "+
			"in use; the job starts when one is free", n)
	}
	return nil
}

// suspectRunnerSpawnedLocked sends a suspect to the runner that was started for it. If err says that no
// runner could be started, it postpones all waiting suspects, and the pool claims no jobs for a while. The
// suspects wait longer than the pool, so that the next claims get other jobs.
func (l *loop) suspectRunnerSpawnedLocked(h *lease, conn *runnerConn, err error) {
	l.isolation.spawningForSuspect = false
	if err == nil {
		l.isolation.spawnPause = shortagePauseMin
		if h.phase == phaseAwaitingRunner {
			l.sendJobLocked(h, conn)
		}
	} else if failed := l.leases.endAwaitingRunnerLocked(isSuspect); len(failed) > 0 {
		l.pauseClaimsLocked(err.Error())
		l.isolation.nextSuspectAt = l.claimsPausedUntil.Add(l.isolation.spawnPause)
		l.isolation.spawnPause = min(2*l.isolation.spawnPause, shortagePauseMax)
		l.Go(func() { // in the background, since logging may block and the caller holds mu
			l.cfg.Log.Warn("could not start a separate runner for a job whose runner died; trying again",
				"job", failed[0].ID, "error", err)
		})
		l.postpone(failed, err)
	}
	l.spawnForSuspectLocked()
}

// sendJobLocked sends a job to the separate runner that was started for it. It returns the job to the queue
// if no job may start now, for example during a drain.
func (l *loop) sendJobLocked(h *lease, conn *runnerConn) {
	if !l.mayStartLocked() {
		l.returnToQueueLocked(h)
		return
	}
	if !h.advanceLocked(eventSent) {
		return
	}
	h.assignToLocked(conn)
	conn.Send(l.appendStartFramesLocked(nil, &h.job)...)
}

// postpone returns jobs to the queue with a delay, during which they cannot be claimed. Without the delay,
// the next claim would get the same jobs again instead of others.
func (l *loop) postpone(jobs []queue.Job, cause error) {
	for i := range jobs {
		j := &jobs[i]
		d := queue.Decide(j, queue.Outcome{EndCause: queue.EndNeverStarted, Error: cause.Error()}, l.cfg.Policy())
		// Show the reason "shortage". But because the cause is EndNeverStarted and not EndShortage, this
		// delay does not count toward MaxShortages: the job did not cause it.
		d.Reason = queue.ReasonShortage
		d.Delay = l.isolation.nextPostponeDelay(time.Now())
		l.session.addSettlement(store.Settlement{Lease: j.Lease(), Decision: d})
	}
	l.wake()
}

// nextPostponeDelay returns how long the next job to postpone must wait. It may be claimed again at least
// suspectInterval later than the job that was postponed before it.
func (i *isolation) nextPostponeDelay(now time.Time) time.Duration {
	i.lastPostponedTo = i.lastPostponedTo.Add(suspectInterval)
	for _, earliest := range []time.Time{now.Add(minPostponeDelay), i.nextSuspectAt} {
		if i.lastPostponedTo.Before(earliest) {
			i.lastPostponedTo = earliest
		}
	}
	return i.lastPostponedTo.Sub(now)
}

// Limits for users whose starts hang.
const (
	hungStartsToIsolate    = 2           // number of hung starts after which a user gets a separate runner
	maxIsolatedUsers       = 16          // maximum number of users with a separate runner at the same time
	maxUnresponsivePerUser = 2           // a user with this many unresponsive separate runners gets no further one
	hungStartRetention     = time.Hour   // a user's hung starts are forgotten this long after the last one
	userRunnerIdleTimeout  = time.Minute // a separate runner ends after this time without a job
)

// isolatedUser is a user with jobs whose programs have hung at their start. The pool's mu guards conn. Only
// Run's goroutine uses the other fields.
type isolatedUser struct {
	uid        int
	hungStarts int         // number of starts that hung
	lastHungAt time.Time   // time of the last hung start
	conn       *runnerConn // the user's separate runner; nil if it has none
	spawning   bool        // a separate runner for the user is being started
	lastUsedAt time.Time   // when conn was last used
}

// recordHungStart records that the start of a job's program has hung and delayed other jobs.
func (l *loop) recordHungStart(j *queue.Job) {
	if !l.cfg.RunnerLocation.OwnedByRoot() {
		return // all jobs run as one account, so they need no separate runners
	}
	uid := l.cfg.Account.RunsAs(j)
	o := l.isolation.users[uid]
	if o == nil {
		o = &isolatedUser{uid: uid}
		l.isolation.users[uid] = o
	}
	if o.hungStarts++; o.hungStarts == hungStartsToIsolate {
		l.cfg.Log.Warn("a user's jobs hang when they start; they get a separate runner for a while", "uid", uid, "job", j.ID)
	}
	o.lastHungAt = time.Now()
}

// isolatedUserOf returns the user of a job if all jobs of this user must run in a separate runner, and
// otherwise nil.
func (l *loop) isolatedUserOf(j *queue.Job) *isolatedUser {
	if len(l.isolation.users) == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, o := range l.isolation.users {
		if o.conn == nil && !o.spawning && time.Since(o.lastHungAt) > hungStartRetention {
			delete(l.isolation.users, uid)
		}
	}
	if o := l.isolation.users[l.cfg.Account.RunsAs(j)]; o != nil && o.hungStarts >= hungStartsToIsolate {
		return o
	}
	return nil
}

// startForUser sends jobs of one user to the user's separate runner. It starts the runner if necessary.
func (l *loop) startForUser(o *isolatedUser, jobs []queue.Job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	others, unresponsive := 0, 0
	for _, other := range l.isolation.users {
		if other != o && (other.conn != nil || other.spawning) {
			others++
		}
	}
	for _, conn := range l.runners.clients {
		if conn.user == o && conn.state == connUnresponsive {
			unresponsive++
		}
	}
	var cause error
	switch {
	case o.conn != nil || o.spawning:
	case others >= maxIsolatedUsers:
		cause = fmt.Errorf("the job waits for a separate runner, because jobs of its user hang when they start; all %d "+
			"runners for such users are in use; the job starts when one is free", others)
	case unresponsive >= maxUnresponsivePerUser:
		cause = fmt.Errorf("the job waits, because %d runners that were started only for this user do not answer; see: "+
			"queuectl doctor", unresponsive)
	}
	if cause != nil {
		l.postpone(jobs, cause)
		return
	}
	for i := range jobs {
		h := l.leases.addLocked(&jobs[i], phaseAwaitingRunner)
		if o.conn != nil {
			l.sendJobLocked(h, o.conn)
		}
	}
	o.lastUsedAt = time.Now()
	if o.conn == nil && !o.spawning {
		o.spawning = true
		l.spawn(forUser, func(conn *runnerConn, err error) { l.userRunnerSpawnedLocked(o, conn, err) })
	}
}

// userRunnerSpawnedLocked sends the waiting jobs of a user to the runner that was started for them. If err is
// not nil, it postpones them.
func (l *loop) userRunnerSpawnedLocked(o *isolatedUser, conn *runnerConn, err error) {
	o.spawning, o.lastUsedAt = false, time.Now()
	selects := func(j *queue.Job) bool { return !isSuspect(j) && l.cfg.Account.RunsAs(j) == o.uid }
	if err == nil {
		o.conn, conn.user = conn, o
		for _, h := range l.leases.awaitingRunnerLocked(selects) {
			l.sendJobLocked(h, conn)
		}
	} else if failed := l.leases.endAwaitingRunnerLocked(selects); len(failed) > 0 {
		l.Go(func() { // in the background, since logging may block and the caller holds mu
			l.cfg.Log.Error("could not start a separate runner for a user's jobs; they are postponed",
				"uid", o.uid, "error", err)
		})
		l.postpone(failed, err)
	}
}
