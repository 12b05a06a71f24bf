package worker

import (
	"context"
	"errors"
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

// A job whose runner died may have killed it, or have been its neighbour. So it runs
// next in a runner of its own, and only what dies there is put down to it. Jobs of a user
// whose starts have hung, and held up everybody's, have a runner of that user's own.

// startAll hands claimed jobs over: suspects to runners of their own, those of users whose
// starts have hung to their users' runners, all others to the current one.
func (p *Pool) startAll(ctx context.Context, jobs []queue.Job, stored bool, loops *sync.WaitGroup) {
	jobs = p.holdDisowned(jobs)
	var suspects []queue.Job
	owned := map[*owner][]queue.Job{}
	apart := func(j *queue.Job) bool {
		if j.Suspect {
			suspects = append(suspects, *j)
			return true
		}
		if o := p.isolated(j); o != nil {
			owned[o] = append(owned[o], *j)
			return true
		}
		return false
	}
	rest := jobs
	if len(p.owners) > 0 || slices.ContainsFunc(jobs, func(j queue.Job) bool { return j.Suspect }) {
		rest = nil
		for i := range jobs {
			if !apart(&jobs[i]) {
				rest = append(rest, jobs[i])
			}
		}
	}
	p.start(rest, stored)
	if len(suspects) > 0 {
		p.startAlone(ctx, suspects, loops)
	}
	for o, list := range owned {
		p.startOwned(ctx, o, list, loops)
	}
}

// holdDisowned has those jobs held that may not start, and returns the others.
func (p *Pool) holdDisowned(jobs []queue.Job) []queue.Job {
	why := map[int]error{}
	for i := range jobs {
		if err := p.cfg.Disowned(&jobs[i]); err != nil {
			why[i] = err
		}
	}
	if len(why) == 0 {
		return jobs
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var rest []queue.Job
	for i := range jobs {
		j := &jobs[i]
		if why[i] == nil {
			rest = append(rest, *j)
			continue
		}
		d := queue.Decide(j, queue.Outcome{End: queue.Disowned, Error: why[i].Error()}, p.cfg.Policy())
		p.pending.Ended = append(p.pending.Ended, store.Settlement{Lease: j.Lease(), Decision: d})
		p.unheld = append(p.unheld, remark{slog.LevelWarn, "job is held", []slog.Attr{slog.String("job", j.ID), slog.String("reason", string(d.Reason)), slog.Any("error", why[i])}})
	}
	p.ring()
	return rest
}

// Limits of suspects.
const (
	// maxAlone is how many run at once. Each has a process of 11 MB beside it, and a watchdog
	// where that is root's. A runner with thousands of workers leaves thousands of suspects.
	maxAlone = 16
	// aloneEvery is the time between two that come back after they were put off: no more
	// come than could be started.
	aloneEvery = time.Second / maxAlone
	// putOffFor is how long one is put off at least.
	putOffFor = time.Second
)

// startAlone starts a runner for each suspect, one after the other, and puts off those for
// which there is no room.
func (p *Pool) startAlone(ctx context.Context, suspects []queue.Job, loops *sync.WaitGroup) {
	for i := range suspects {
		if why := p.crowdedAlone(); why != nil {
			p.putOff(suspects[i:], why)
			break
		}
		p.mu.Lock()
		p.hold(&suspects[i]).waiting = true
		p.mu.Unlock()
	}
	p.spawnAlone(ctx, loops)
}

// spawnAlone starts a runner for a suspect that waits for one, unless one is being
// started.
func (p *Pool) spawnAlone(ctx context.Context, loops *sync.WaitGroup) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.spawningAlone {
		return
	}
	for _, h := range p.heldByAge() {
		if h.waiting && !h.over && h.job.Suspect {
			p.spawningAlone = true
			p.spawn(ctx, purpose{kind: forSuspect, lease: h.job.Lease()}, loops)
			return
		}
	}
}

// crowdedAlone says why no more suspects are started now, nil if they are.
func (p *Pool) crowdedAlone() error {
	if time.Now().Before(p.aloneAfter) {
		return errors.New("no runner of its own could be started a moment ago")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, conn := range p.clients {
		if runner.Isolated(conn.Dir) && !conn.dismissed {
			n++
		}
	}
	for _, h := range p.leases {
		if h.waiting && h.job.Suspect {
			n++
		}
	}
	if n >= maxAlone {
		return fmt.Errorf("%d jobs run alone already, each after its runner died; this one follows them", n)
	}
	return nil
}

// spawnedAlone hands a suspect to the runner that was started for it. If none could be
// started all suspects that wait for one are put off.
func (p *Pool) spawnedAlone(ctx context.Context, f finding, loops *sync.WaitGroup) {
	var conn *runnerConn
	if f.err == nil {
		p.alonePause = pauseFirst
		conn = p.adopt(ctx, f.client, false, loops)
	}
	p.mu.Lock()
	p.spawningAlone = false
	if h := p.leases[f.spawned.lease]; conn != nil && h != nil && !h.over && h.waiting {
		p.handOver(h, conn)
	}
	var back []queue.Job
	for _, h := range p.leases {
		if f.err != nil && h.waiting && !h.over && h.job.Suspect {
			h.over = true
			back = append(back, h.job)
		}
	}
	p.mu.Unlock()
	if len(back) > 0 {
		p.failedAlone(&back[0], f.err)
		p.putOff(back, f.err)
	}
	p.spawnAlone(ctx, loops)
}

// handOver sends a job to a runner that was started for it, unless nothing is to be
// started any more. The caller holds mu.
func (p *Pool) handOver(h *leaseState, conn *runnerConn) {
	if p.stopping || p.draining || len(h.asks) > 0 || h.end != nil {
		p.giveBack(h)
		return
	}
	p.take(h, conn)
	frames := p.startFrames(nil, &h.job)
	if p.watched[h.job.Seq] > 0 {
		frames = append(frames, &wire.Watch{Lease: wire.Lease(h.job.Lease())})
	}
	conn.Send(frames...)
}

// failedAlone has less claimed for a while, as after any shortage, and suspects tried
// again some time after that: else nobody but they would ever be claimed.
func (p *Pool) failedAlone(j *queue.Job, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slowDown()
	p.aloneAfter = p.paused.Add(p.alonePause)
	p.alonePause = min(2*p.alonePause, pauseLast)
	p.unheld = append(p.unheld, shortOfRunners(j, err))
}

// putOff gives jobs back for a while. At their old place, the head of the queue, they
// would be claimed again at once, and nothing else.
func (p *Pool) putOff(jobs []queue.Job, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range jobs {
		j := &jobs[i]
		now := time.Now()
		d := queue.Decide(j, queue.Outcome{End: queue.Unstarted, Error: why.Error()}, p.cfg.Policy())
		d.Reason = queue.ReasonShortage // of which others are the cause: it costs no refund
		p.putOffTo = p.putOffTo.Add(aloneEvery)
		for _, at := range []time.Time{now.Add(putOffFor), p.aloneAfter} {
			if p.putOffTo.Before(at) {
				p.putOffTo = at
			}
		}
		d.Delay = p.putOffTo.Sub(now)
		p.pending.Ended = append(p.pending.Ended, store.Settlement{Lease: j.Lease(), Decision: d})
	}
	p.ring()
}

// Limits of users whose starts hang.
const (
	hungStarts  = 2           // after so many a user's jobs have a runner of their own
	maxOwners   = 16          // users who have one at once
	maxSilent   = 2           // of a user's own that do not answer: no other is started then
	ownerMemory = time.Hour   // after the last start that hung
	ownerIdle   = time.Minute // that such a runner stays without a job
)

// owner is a user whose starts have hung. Its fields are guarded by the pool's mu.
type owner struct {
	uid      int
	hung     int         // starts
	at       time.Time   // of the last one
	conn     *runnerConn // the user's own runner, nil if there is none
	spawning bool
	used     time.Time // conn, the last time
}

// startHung notes that a start of a job has hung, and held up those of others. The caller
// holds mu.
func (p *Pool) startHung(j *queue.Job) {
	if !p.cfg.Runners.Roots() {
		return // all jobs are one account's
	}
	uid := p.cfg.Account.RunsAs(j)
	o := p.owners[uid]
	if o == nil {
		o = &owner{uid: uid}
		p.owners[uid] = o
	}
	if o.hung++; o.hung == hungStarts {
		p.cfg.Log.Warn("starts of a user's jobs hang; they have a runner of their own for a while", "uid", uid, "job", j.ID)
	}
	o.at = time.Now()
}

// isolated is the owner of a job that does not go to everybody's runner, else nil.
func (p *Pool) isolated(j *queue.Job) *owner {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, o := range p.owners {
		if o.conn == nil && !o.spawning && time.Since(o.at) > ownerMemory {
			delete(p.owners, uid)
		}
	}
	if o := p.owners[p.cfg.Account.RunsAs(j)]; o != nil && o.hung >= hungStarts {
		return o
	}
	return nil
}

// startOwned hands jobs to their user's own runner, which is started if there is none.
func (p *Pool) startOwned(ctx context.Context, o *owner, jobs []queue.Job, loops *sync.WaitGroup) {
	p.mu.Lock()
	have := 0
	for _, other := range p.owners {
		if other != o && (other.conn != nil || other.spawning) {
			have++
		}
	}
	var why error
	switch silent := p.silentOf(o); {
	case o.conn != nil || o.spawning:
	case have >= maxOwners:
		why = fmt.Errorf("%d users whose starts hang have a runner of their own already", have)
	case silent >= maxSilent:
		why = fmt.Errorf("%d runners of the user's own do not answer", silent)
	}
	if why != nil {
		p.mu.Unlock()
		p.putOff(jobs, why)
		return
	}
	spawn := o.conn == nil && !o.spawning
	o.spawning = o.spawning || spawn
	for i := range jobs {
		h := p.hold(&jobs[i])
		h.waiting = true
		if o.conn != nil {
			p.handOver(h, o.conn)
		}
	}
	o.used = time.Now()
	p.mu.Unlock()
	if spawn {
		p.spawn(ctx, purpose{kind: forOwner, owner: o.uid}, loops)
	}
}

// silentOf is how many runners of a user's own do not answer. The caller holds mu.
func (p *Pool) silentOf(o *owner) (n int) {
	for _, conn := range p.clients {
		if conn.owner == o && conn.silent {
			n++
		}
	}
	return n
}

// forsake has a user's further jobs go to another runner than this one, if it is the
// user's own. The caller holds mu.
func (conn *runnerConn) forsake() {
	if conn.owner != nil && conn.owner.conn == conn {
		conn.owner.conn = nil
	}
}

// spawnedFor hands the jobs that wait for their user's own runner to it.
func (p *Pool) spawnedFor(ctx context.Context, f finding, loops *sync.WaitGroup) {
	var conn *runnerConn
	if f.err == nil {
		conn = p.adopt(ctx, f.client, false, loops)
	}
	p.mu.Lock()
	o := p.owners[f.spawned.owner]
	o.spawning, o.used = false, time.Now()
	if conn != nil {
		o.conn, conn.owner = conn, o
	}
	var back []queue.Job
	for _, h := range p.leases {
		switch {
		case !h.waiting || h.over || h.job.Suspect || p.cfg.Account.RunsAs(&h.job) != o.uid:
		case conn != nil:
			p.handOver(h, conn)
		default:
			h.over = true
			back = append(back, h.job)
		}
	}
	p.mu.Unlock()
	if len(back) > 0 {
		p.cfg.Log.Error("no runner of their own for a user's jobs; they are put off", "uid", o.uid, "error", f.err)
		p.putOff(back, f.err)
	}
}

// dismissIdle ends the runners that take no new jobs once they have run what they had:
// those of one job, or of one user, and those of another version or kind than new jobs go
// to.
func (p *Pool) dismissIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.clients {
		if conn.current || conn.dismissed || conn.silent || p.takenBy(conn) > 0 || len(p.acks[conn]) > 0 || conn.owner != nil && time.Since(conn.owner.used) < ownerIdle {
			continue
		}
		busy := false
		for _, h := range p.leases {
			busy = busy || h.conn == conn
		}
		if !busy {
			conn.forsake()
			conn.dismissed = true
			conn.Send(&wire.Shutdown{})
		}
	}
}
