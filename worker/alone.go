package worker

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/store"
)

// A job whose runner died may have killed it, or have been its neighbour. So it runs
// next in a runner of its own, and only what dies there is put down to it. Jobs of a user
// whose starts have hung, and held up everybody's, have a runner of that user's own.

// isolation is what Run knows of jobs that run in runners of their own.
type isolation struct {
	owners   map[int]*owner // users whose starts have hung, by uid
	spawning bool           // a runner for a suspect is being started
	pause    time.Duration  // after the next suspect that could not be started
	after    time.Time      // no suspect is started before
	putOffTo time.Time      // when the suspect that was put off last comes back
}

// startAll hands claimed jobs over: suspects to runners of their own, those of users whose
// starts have hung to their users' runners, all others to the current one. Those that may
// not start are held.
func (l *loop) startAll(jobs []queue.Job, stored bool) {
	rest := jobs[:0]
	var suspects []queue.Job
	owned := map[*owner][]queue.Job{}
	for i := range jobs {
		j := &jobs[i]
		if err := l.cfg.Disowned(j); err != nil {
			l.holdDisowned(j, err)
		} else if j.Parents > 0 && j.Deps == nil {
			l.readDeps(*j)
		} else if j.Suspect {
			suspects = append(suspects, *j)
		} else if o := l.isolated(j); o != nil {
			owned[o] = append(owned[o], *j)
		} else {
			rest = append(rest, *j)
		}
	}
	l.start(rest, stored)
	if len(suspects) > 0 {
		l.startAlone(suspects)
	}
	for o, list := range owned {
		l.startOwned(o, list)
	}
}

// ErrNotHere says that a job may start on other machines of the queue, but not on this one.
var ErrNotHere = errors.New("the job cannot start on this node")

// holdDisowned has a job held that may not start, or wait for another machine that may start it.
func (l *loop) holdDisowned(j *queue.Job, why error) {
	end := queue.Disowned
	if errors.Is(why, ErrNotHere) {
		end = queue.Shortage
	}
	d := queue.Decide(j, queue.Outcome{End: end, Error: why.Error()}, l.cfg.Policy())
	l.session.settle(store.Settlement{Lease: j.Lease(), Decision: d})
	if end == queue.Shortage {
		l.ring()
		return
	}
	l.session.remarks = append(l.session.remarks, remark{slog.LevelWarn, "job is held", []slog.Attr{slog.String("job", j.ID), slog.String("reason", string(d.Reason)), slog.Any("error", why)}})
	l.ring()
}

// Limits of suspects.
const (
	// maxAlone is how many run at once. Each has a process of 11 MB beside it, and a watchdog
	// where that is root's. A runner with thousands of workers leaves thousands of suspects.
	// See docs/decisions/0050.
	maxAlone = 16
	// aloneEvery is the time between two that come back after they were put off: no more
	// come than could be started.
	aloneEvery = time.Second / maxAlone
	// putOffFor is how long one is put off at least.
	putOffFor = time.Second
)

// startAlone starts a runner for each suspect, one after the other, and puts off those for
// which there is no room.
func (l *loop) startAlone(suspects []queue.Job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range suspects {
		if why := l.crowdedAlone(); why != nil {
			l.putOff(suspects[i:], why)
			break
		}
		l.leases.hold(&suspects[i]).waiting = true
	}
	l.spawnAlone()
}

// spawnAlone starts a runner for a suspect that waits for one, unless one is being
// started. The caller holds mu.
func (l *loop) spawnAlone() {
	if l.isolation.spawning {
		return
	}
	for _, h := range l.leases.byAge() {
		if h.waiting && !h.reading && !h.over && h.job.Suspect {
			l.isolation.spawning = true
			l.spawn(true, false, func(conn *runnerConn, err error) { l.spawnedAlone(h, conn, err) })
			return
		}
	}
}

// crowdedAlone says why no more suspects are started now, nil if they are. The caller
// holds mu.
func (l *loop) crowdedAlone() error {
	if time.Now().Before(l.isolation.after) {
		return errors.New("a separate runner for this job could not be started a moment ago; the service tries again later")
	}
	n := 0
	for _, conn := range l.runners.clients {
		if runner.Isolated(conn.Dir) && !conn.dismissed {
			n++
		}
	}
	for _, h := range l.leases.all {
		if h.waiting && !h.reading && h.job.Suspect {
			n++
		}
	}
	if n >= maxAlone {
		return fmt.Errorf("%d jobs whose runners died already run in separate runners, which is the limit; this job waits for them", n)
	}
	return nil
}

// spawnedAlone hands a suspect to the runner that was started for it. If none could be
// started all suspects that wait for one are put off. Then less is claimed for a while, as
// after any shortage, and suspects are tried again some time after that: else nobody but
// they would ever be claimed. The caller holds mu.
func (l *loop) spawnedAlone(h *leaseState, conn *runnerConn, err error) {
	l.isolation.spawning = false
	if err == nil {
		l.isolation.pause = pauseFirst
		if h.waiting && !h.over {
			l.handOver(h, conn)
		}
	} else if back := l.leases.notServed(func(j *queue.Job) bool { return j.Suspect }); len(back) > 0 {
		l.slowDown(err.Error())
		l.isolation.after = l.paused.Add(l.isolation.pause)
		l.isolation.pause = min(2*l.isolation.pause, pauseLast)
		l.session.remarks = append(l.session.remarks, remark{slog.LevelWarn, "could not start a separate runner for a job whose runner died; trying again", []slog.Attr{slog.String("job", back[0].ID), slog.Any("error", err)}})
		l.putOff(back, err)
	}
	l.spawnAlone()
}

// handOver sends a job to a runner that was started for it, unless nothing is to be
// started any more. The caller holds mu.
func (l *loop) handOver(h *leaseState, conn *runnerConn) {
	if !l.mayStart() || len(h.asks) > 0 || h.end != nil {
		l.giveBack(h)
		return
	}
	h.sentTo(conn)
	conn.Send(l.startFrames(nil, &h.job)...)
}

// putOff gives jobs back for a while. At their old place, the head of the queue, they
// would be claimed again at once, and nothing else.
func (l *loop) putOff(jobs []queue.Job, why error) {
	for i := range jobs {
		j := &jobs[i]
		d := queue.Decide(j, queue.Outcome{End: queue.Unstarted, Error: why.Error()}, l.cfg.Policy())
		d.Reason = queue.ReasonShortage // of which others are the cause: it costs no refund
		d.Delay = l.isolation.comeBack(time.Now())
		l.session.settle(store.Settlement{Lease: j.Lease(), Decision: d})
	}
	l.ring()
}

// comeBack is how long the next job is put off.
func (i *isolation) comeBack(now time.Time) time.Duration {
	i.putOffTo = i.putOffTo.Add(aloneEvery)
	for _, at := range []time.Time{now.Add(putOffFor), i.after} {
		if i.putOffTo.Before(at) {
			i.putOffTo = at
		}
	}
	return i.putOffTo.Sub(now)
}

// Limits of users whose starts hang.
const (
	hungStarts  = 2           // after so many a user's jobs have a runner of their own
	maxOwners   = 16          // users who have one at once
	maxSilent   = 2           // of a user's own that do not answer: no other is started then
	ownerMemory = time.Hour   // after the last start that hung
	ownerIdle   = time.Minute // that such a runner stays without a job
)

// owner is a user whose starts have hung. It is Run's, but for conn, which the pool's mu
// guards.
type owner struct {
	uid      int
	hung     int         // starts
	at       time.Time   // of the last one
	conn     *runnerConn // the user's own runner, nil if there is none
	spawning bool
	used     time.Time // conn, the last time
}

// startHung notes that a start of a job has hung, and held up those of others.
func (l *loop) startHung(j *queue.Job) {
	if !l.cfg.Runners.Roots() {
		return // all jobs are one account's
	}
	uid := l.cfg.Account.RunsAs(j)
	o := l.isolation.owners[uid]
	if o == nil {
		o = &owner{uid: uid}
		l.isolation.owners[uid] = o
	}
	if o.hung++; o.hung == hungStarts {
		l.cfg.Log.Warn("a user's jobs hang when they start; they get a separate runner for a while", "uid", uid, "job", j.ID)
	}
	o.at = time.Now()
}

// isolated is the owner of a job that does not go to everybody's runner, else nil.
func (l *loop) isolated(j *queue.Job) *owner {
	if len(l.isolation.owners) == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, o := range l.isolation.owners {
		if o.conn == nil && !o.spawning && time.Since(o.at) > ownerMemory {
			delete(l.isolation.owners, uid)
		}
	}
	if o := l.isolation.owners[l.cfg.Account.RunsAs(j)]; o != nil && o.hung >= hungStarts {
		return o
	}
	return nil
}

// startOwned hands jobs to their user's own runner, which is started if there is none.
func (l *loop) startOwned(o *owner, jobs []queue.Job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	have, silent := 0, 0
	for _, other := range l.isolation.owners {
		if other != o && (other.conn != nil || other.spawning) {
			have++
		}
	}
	for _, conn := range l.runners.clients {
		if conn.owner == o && conn.silent {
			silent++
		}
	}
	var why error
	switch {
	case o.conn != nil || o.spawning:
	case have >= maxOwners:
		why = fmt.Errorf("%d users whose jobs hang when they start have a separate runner already, which is the limit", have)
	case silent >= maxSilent:
		why = fmt.Errorf("%d separate runners of this user do not answer", silent)
	}
	if why != nil {
		l.putOff(jobs, why)
		return
	}
	for i := range jobs {
		h := l.leases.hold(&jobs[i])
		h.waiting = true
		if o.conn != nil {
			l.handOver(h, o.conn)
		}
	}
	o.used = time.Now()
	if o.conn == nil && !o.spawning {
		o.spawning = true
		l.spawn(false, false, func(conn *runnerConn, err error) { l.spawnedFor(o, conn, err) })
	}
}

// spawnedFor hands the jobs that wait for their user's own runner to it. The caller holds mu.
func (l *loop) spawnedFor(o *owner, conn *runnerConn, err error) {
	o.spawning, o.used = false, time.Now()
	of := func(j *queue.Job) bool { return !j.Suspect && l.cfg.Account.RunsAs(j) == o.uid }
	if err == nil {
		o.conn, conn.owner = conn, o
		for _, h := range l.leases.waiting(of) {
			l.handOver(h, conn)
		}
	} else if back := l.leases.notServed(of); len(back) > 0 {
		l.cfg.Log.Error("could not start a separate runner for a user's jobs; they are postponed", "uid", o.uid, "error", err)
		l.putOff(back, err)
	}
}
