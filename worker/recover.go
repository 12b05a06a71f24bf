package worker

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// A dead runner is recovered in one go: all that it has left is ended and read once
// (recover), what follows is decided (endings), recorded (settle) and then its folder is
// removed (recovered).

// deadRunner is all that is known of a runner that lives no more. One without a folder
// stands for all those whose folders are gone.
// See docs/decisions/0056.
type deadRunner struct {
	runner.Remains
	dir   string
	by    *runner.Client // which living runner recovered it, nil if this process did
	stays bool           // its folder stays: there is no runner that may remove it
}

// ending is what follows for a lease of a runner that lives no more, or does not know it.
type ending struct {
	*leaseState
	result *wire.Result  // its runner has noted how it ended
	noted  *wire.Attempt // its runner has noted that it began
	how    queue.End     // if there is no result; 0 is one that never began
}

// recovery is what Run knows of leases whose runners are not found.
type recovery struct {
	seeking  bool     // leases of which no runner knows are looked for
	rebooted bool     // a dead runner was of an earlier boot
	moved    bool     // the store is a copy
	unsure   []string // folders that are gone or damaged, of runners that may have leases
	missing  bool     // the folder of a runner that the store knew of was not there
}

// recover ends what a dead runner has left alive, and reads what it noted.
func (p *Pool) recover(ctx context.Context, c *contact) (*deadRunner, error) {
	p.mu.Lock()
	c.dead = true
	leased, sent := p.leases.orphans(c.dir)
	p.mu.Unlock()
	p.ring()
	d := &deadRunner{dir: c.dir, stays: true, Remains: runner.Remains{SameBoot: true}}
	if c.unknown {
		return d, nil
	}
	by, err := p.cleaner(filepath.Dir(c.dir))
	if err != nil {
		return nil, err
	}
	if d.stays = by == nil && p.cfg.Runners.Foreign(); d.stays {
		d.Remains, err = runner.Read(c.dir, leased)
	} else {
		if by != nil {
			d.by = by.Client
		}
		d.Remains, err = p.recoverBy(ctx, by, c.dir, leased, sent)
	}
	return d, err
}

// cleaner is a living runner that may deal with what a dead one has left, if this
// process may not; nil if there is none and none will come: the system has ended what the
// dead one ran, and its folder stays. root is the folder of their folders.
func (p *Pool) cleaner(root string) (*runnerConn, error) {
	if !p.cfg.Runners.Foreign() {
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.runners.clients {
		if filepath.Dir(conn.Dir) == root && !conn.silent {
			return conn, nil
		}
	}
	for other, c := range p.runners.contacts {
		if filepath.Dir(other) == root && !c.dead {
			return nil, errors.New("no connected runner can end the lost runner's processes yet")
		}
	}
	if root == p.cfg.Runners.Root() && !p.stopping {
		return nil, errors.New("a runner that can end the lost runner's processes has not started yet")
	}
	return nil, nil
}

// recoverBy is runner.Recover by a runner, for as long as that answers; by nil is this
// process.
func (p *Pool) recoverBy(ctx context.Context, by *runnerConn, dir string, leased, sent []wire.Attempt) (runner.Remains, error) {
	if by == nil {
		return runner.Recover(ctx, dir, leased, sent, nil)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() {
		for pause(ctx, aliveEvery) {
			if !p.lives(ctx, by) {
				cancel()
			}
		}
	})
	defer cancel()
	return runner.Recover(ctx, dir, leased, sent, by.Client)
}

// endings decides what follows for each lease that was, or may have been, a dead runner's:
// of some its journal tells, of others that they ran; what else it was sent it never got,
// unless its notes are damaged. It changes nothing.
func (d *deadRunner) endings(held *leases) (list []ending) {
	seen := map[*leaseState]bool{}
	add := func(h *leaseState, result *wire.Result, noted *wire.Attempt) {
		if h != nil && !seen[h] && (h.orphan(d.dir) || h.orphan("")) {
			seen[h] = true
			list = append(list, ending{h, result, noted, d.how(h, noted)})
		}
	}
	for _, r := range d.Results {
		add(held.all[queue.Lease(r.Lease)], r, nil)
	}
	for i := range d.Running {
		add(held.all[queue.Lease(d.Running[i].Lease)], nil, &d.Running[i])
	}
	for _, h := range held.all {
		if h.orphan(d.dir) {
			add(h, nil, nil)
		}
	}
	return list
}

// how is how an attempt ended of which there is no result: as somebody had asked, if that
// was to cancel it, or if it lived until it was ended. Else nobody knows. It is 0 if the
// attempt never began.
func (d *deadRunner) how(h *leaseState, noted *wire.Attempt) queue.End {
	begun := noted != nil || h.running || h.begun
	switch {
	case !begun && !d.Damaged:
		return 0
	case d.Unkilled[h.lease()]:
		return queue.Unkillable
	case h.end != nil && (*h.end == queue.Killed || noted != nil && slices.Contains(d.Alive, h.lease())):
		return *h.end
	case begun && d.SameBoot:
		return queue.Lost
	case begun:
		return queue.Interrupted
	case d.SameBoot:
		return queue.PerhapsLost
	}
	return queue.PerhapsInterrupted
}

// settle records what follows for the leases of a dead runner, and counts those that have
// results and those that were lost while they ran.
func (l *loop) settle(d *deadRunner) (results, lost int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range d.endings(&l.leases) {
		e.over = true
		switch {
		case e.result != nil:
			results++
			l.session.settle(l.settlement(e.leaseState, e.result, d.dir))
		case e.noted != nil:
			lost++
			l.session.settle(l.lost(e.leaseState, e.noted, e.how, d.dir))
		case e.how != 0:
			l.session.settle(l.lost(e.leaseState, nil, e.how, ""))
		default:
			l.giveBack(e.leaseState)
		}
	}
	l.ring()
	return results, lost
}

// recovered settles what a dead runner ran. The folder goes once that is stored.
func (l *loop) recovered(d *deadRunner) {
	results, lost := l.settle(d)
	l.recovery.rebooted = l.recovery.rebooted || !d.SameBoot
	if d.Damaged {
		l.recovery.unsure = append(l.recovery.unsure, d.dir)
	}
	if !d.stays {
		l.session.then = append(l.session.then, func() {
			if err := runner.Forget(d.dir, d.by); err != nil { // on Windows whoever reads a file keeps it there
				l.cfg.Log.Warn("could not remove a dead runner's directory; it will be removed at the next start", "dir", d.dir, "error", err)
			}
		})
	}
	for _, left := range d.Stuck {
		l.cfg.Log.Error("a process left by a dead runner still exists after SIGKILL", "pid", left.PID, "runner", d.dir)
	}
	if lost > 0 {
		l.cfg.Log.Warn("a runner died", "runner", d.dir, "results", results, "lost", lost)
	} else {
		l.cfg.Log.Info("a runner ended", "runner", d.dir, "results", results)
	}
}

// folders are those of all runners that may have leases. One that is gone or damaged is
// among them until what its runner may have had is settled.
func (l *loop) folders() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.leases.unsettled(l.recovery.unsure) {
		l.recovery.unsure = nil
	}
	return l.runners.folders(slices.Clone(l.recovery.unsure))
}

// seekStrays looks, once all folders are found, for what the leases of which no runner
// knows have left alive: their runner's folder may be gone, and they live on.
func (l *loop) seekStrays() {
	l.mu.Lock()
	leased, _ := l.leases.orphans("")
	l.mu.Unlock()
	if len(leased) == 0 {
		return
	}
	if l.recovery.moved { // they are of the queue that this one is a copy of
		l.settleStrays(nil)
		return
	}
	l.recovery.seeking = true
	after := time.Duration(0)
	if l.recovery.missing {
		after = startBy + startSpare
	}
	l.Go(func() {
		if alive, found := l.seek(l.ctx, leased, after); found {
			l.tell(func() error { l.settleStrays(alive); return nil })
		}
	})
}

// seek ends what strays have left alive, and lists those that had any, once a while has
// passed: a runner whose folder is gone may live, and begin what it was sent by an earlier
// service for as long as it has to.
func (p *Pool) seek(ctx context.Context, leased []wire.Attempt, after time.Duration) (alive []wire.Lease, found bool) {
	for wait := contactFirst; pause(ctx, after); wait = min(2*wait, contactLast) {
		if by, err := p.cleaner(p.cfg.Runners.Root()); err == nil {
			if r, err := p.recoverBy(ctx, by, "", nil, leased); err == nil {
				return r.Alive, true
			}
		}
		after = wait
	}
	return nil, false
}

// settleStrays settles the leases of which no runner knows: what had processes had been
// started.
func (l *loop) settleStrays(alive []wire.Lease) {
	l.recovery.seeking = false
	l.mu.Lock()
	for _, lease := range alive {
		if h := l.leases.all[queue.Lease(lease)]; h != nil && h.conn == nil {
			h.begun = true
		}
	}
	l.mu.Unlock()
	l.settle(&deadRunner{Remains: runner.Remains{SameBoot: !l.recovery.rebooted, Damaged: len(l.recovery.unsure) > 0}})
}

// lost is the settlement of an attempt whose runner, of a folder, has died; running is
// nil if the runner has not noted that it began. Of one of which nobody has, it is not known
// when it began, if it did: it has lasted no time.
func (p *Pool) lost(h *leaseState, running *wire.Attempt, how queue.End, dir string) store.Settlement {
	j, now := &h.job, queue.MillisOf(time.Now())
	o := queue.Outcome{End: how, ExitCode: -1, Alone: runner.Isolated(dir), Paused: p.heldBack(h)}
	a := queue.Attempt{Fence: j.Fence, Node: p.cfg.Node, StartedAt: now, EndedAt: now, ExitCode: -1}
	switch {
	case running != nil:
		a.Worker, a.PID, a.StartedAt = runner.Worker(dir, running.Slot), int(running.PID), queue.Millis(running.StartedAt)
	case h.running:
		a.Worker, a.PID, a.StartedAt = h.worker, h.pid, h.at
	}
	d := queue.Decide(j, o, p.cfg.Policy())
	left := runner.OutputRef(wire.Lease(j.Lease())) // of a runner that died before it could tell
	s := store.Settlement{Lease: j.Lease(), Attempt: a, Decision: d, DeletableOutput: left}
	h.blame(&s)
	return s
}
