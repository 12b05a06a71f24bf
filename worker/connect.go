package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// A runner is a contact from the moment its folder is known until it is connected, or
// known to be dead and recovered. Each contact has a goroutine that tries again and
// again: a runner that hangs holds up what it runs and nothing else.

// Waits of contacts.
// See docs/decisions/0076.
const (
	// adoptWithin is how long a service that starts waits for what earlier ones have left,
	// before it takes requests and claims; the rest is adopted while it serves.
	adoptWithin = time.Second
	// againWithin is how long the runner of new jobs may be out of reach until another one
	// takes them.
	againWithin  = 2 * time.Second
	contactFirst = 10 * time.Millisecond
	contactLast  = time.Second
	spawnFirst   = 100 * time.Millisecond
	spawnLast    = 30 * time.Second
	// launcherAgain bounds the wait while no launcher starts runners: a request that fails costs little.
	launcherAgain = time.Second
)

// contact is the way to a runner that is not connected.
type contact struct {
	dir     string
	current bool      // new jobs go to it once it is met: they did before
	initial bool      // it was there when the service started
	newest  int64     // the highest number of a job that it may have, if it is initial
	unknown bool      // the store knows nothing of it: if it lives it may be used, and if not nothing of ours was in it
	since   time.Time // it is tried
	dead    bool      // it lives no more; guarded by the pool's mu
}

// finding is what came of a contact.
type finding struct {
	client *runner.Client // it lives and was met
	dead   *deadRunner    // it is dead and was recovered
	err    error          // neither, and the service cannot go on
}

// ErrOlder means that a runner has a job with a number that the store has never given out: the
// store is older than what the runner was sent.
// See docs/decisions/0035.
var ErrOlder = errors.New("the runner has jobs that were never enqueued in this queue")

// takeOver begins to connect the runners that live and to recover dead ones. Every lease
// of an earlier service is held from now on, until its runner is found.
func (l *loop) takeOver() error {
	dirs, err := l.cfg.Runners.Find()
	if err != nil {
		return err
	}
	left, err := l.store.Left(l.ctx)
	if err != nil {
		return err
	}
	newest := left.LastSeq
	if left.Moved { // it was put in the place of a newer one on purpose
		newest = math.MaxInt64
	}
	contacts := l.contactsFor(dirs, left.Runners, newest)
	unsure := slices.DeleteFunc(left.Runners, func(dir string) bool { return slices.Contains(dirs, dir) })
	l.recovery = recovery{moved: left.Moved, unsure: unsure, missing: len(unsure) > 0}
	l.mu.Lock()
	for i := range left.Leased {
		j := &left.Leased[i]
		h := l.leases.hold(j)
		if j.State == queue.Processing {
			h.runs()
			h.worker, h.pid, h.at = j.WorkerID, j.PID, j.StartedAt
		}
	}
	l.mu.Unlock()
	for _, c := range contacts {
		l.approach(c)
	}
	if len(contacts) == 0 {
		l.seekStrays()
	}
	return nil
}

// maxUnknown is how many folders of an account's runners are tried of which the store
// knows nothing: one that a service did not live to note is idle and ends by itself.
const maxUnknown = 16

// contactsFor are the contacts of a start. An account may put anything into its folder: of
// one that jobs do not run as now only the runners that the store knows are tried. newest is
// the highest number of a job that they may have.
func (p *Pool) contactsFor(dirs, noted []string, newest int64) (list []*contact) {
	unknown := 0
	for _, dir := range dirs {
		c := &contact{dir: dir, initial: true, newest: newest, since: time.Now()}
		if runner.OfAnAccount(dir) && !slices.Contains(noted, dir) {
			c.unknown = true
			if unknown++; unknown > maxUnknown || filepath.Dir(dir) != p.cfg.Runners.Root() {
				continue
			}
		}
		list = append(list, c)
	}
	return list
}

// approach tries to connect to a runner, or to recover it, until that is done.
func (l *loop) approach(c *contact) {
	l.mu.Lock()
	l.runners.contacts[c.dir] = c
	l.mu.Unlock()
	l.Go(func() {
		told := false
		for wait := contactFirst; ; wait = min(2*wait, contactLast) {
			f, err := l.look(l.ctx, c)
			if err == nil {
				l.tell(func() error { return l.foundRunner(c, f) })
				return
			}
			if !told && time.Since(c.since) > againWithin && l.ctx.Err() == nil {
				told = true
				l.cfg.Log.Error("cannot connect to a runner, so the state of its jobs is unknown; trying again", "dir", c.dir, "error", err)
			}
			l.ring() // another runner may be needed by now
			if !pause(l.ctx, wait) {
				return
			}
		}
	})
}

// look tries once. An error is worth another try.
func (p *Pool) look(ctx context.Context, c *contact) (f finding, err error) {
	lives, err := runner.Lives(c.dir)
	if err != nil {
		return f, err
	}
	if !lives {
		f.dead, err = p.recover(ctx, c)
		return f, err
	}
	epoch, err := p.epoch(ctx) // a new one each time: an answer that came too late took the one before
	if err != nil {
		return f, err
	}
	client, err := runner.Connect(c.dir, epoch, p.cfg.Version)
	switch {
	case errors.Is(err, runner.ErrRefused) && !runner.OfAnAccount(c.dir): // what an account says proves nothing
		return finding{err: fmt.Errorf("%s: %w", c.dir, err)}, nil
	case err != nil:
		return f, err
	}
	if newest := client.Newest(); c.initial && newest > c.newest && !runner.OfAnAccount(c.dir) {
		client.Close()
		return finding{err: fmt.Errorf("%s: %w: its newest job is job %d, but the newest job of this queue is job %d", c.dir, ErrOlder, newest, c.newest)}, nil
	}
	return finding{client: client}, nil
}

// epoch raises the service's epoch, until ctx ends.
func (p *Pool) epoch(ctx context.Context) (int64, error) {
	for wait := retryFirst; ; wait = min(2*wait, retryLast) {
		epoch, err := p.store.NextEpoch(ctx)
		if !passes(err) {
			return epoch, err
		}
		p.cfg.Log.Warn("could not write to the store; trying again", "error", err, "in_ms", wait.Milliseconds())
		if !pause(ctx, wait) {
			return 0, ctx.Err()
		}
	}
}

// foundRunner deals with what came of a contact.
func (l *loop) foundRunner(c *contact, f finding) error {
	if f.err != nil {
		return f.err
	}
	l.mu.Lock()
	delete(l.runners.contacts, c.dir)
	last := c.initial && !l.runners.adopting()
	current := c.current || f.client != nil && l.runners.fits(f.client)
	l.mu.Unlock()
	if f.client != nil {
		l.adopt(f.client, current)
		l.settle(&deadRunner{dir: c.dir, Remains: runner.Remains{SameBoot: true}}) // what it was sent and does not know it never got
	} else {
		l.recovered(f.dead)
	}
	if last {
		l.seekStrays()
	}
	return nil
}

// adopt takes over what a runner has.
func (l *loop) adopt(c *runner.Client, current bool) *runnerConn {
	now := time.Now()
	conn := &runnerConn{Client: c, current: current, heard: now, lived: now, gone: make(chan struct{})}
	l.mu.Lock()
	for _, a := range c.Reply.Attempts {
		h := l.leases.all[queue.Lease(a.Lease)]
		switch {
		case h == nil: // it was given up: nobody waits for it
			l.cfg.Log.Warn("a runner has a job that this queue did not start or no longer counts as running; ending the job", "runner", c.Reply.PID, "seq", a.Seq, "pid", a.PID)
			conn.Send(&wire.Drop{Lease: a.Lease}, &wire.Kill{Lease: a.Lease, Cause: int64(queue.Stopped), Grace: runner.StopGrace()})
			continue
		case h.conn != nil:
			continue // it is another runner's
		}
		h.sentTo(conn)
		if a.PID != 0 {
			l.running(h, a)
		}
		l.askAgain(h)
		l.pauseAgain(h)
	}
	for _, lease := range c.Reply.Ended {
		if h := l.leases.all[queue.Lease(lease)]; h != nil && h.conn == nil {
			h.sentTo(conn)
			h.runs()
		}
	}
	l.runners.add(conn)
	l.takeBackForDrain()
	l.prolong(conn)
	l.mu.Unlock()
	l.listen(conn)
	l.setUp()
	l.cfg.Log.Debug("runner met", "pid", c.Reply.PID, "running", len(c.Reply.Attempts), "ended", len(c.Reply.Ended))
	return conn
}

// askAgain repeats what may have been lost with another connection. The caller
// holds mu.
func (l *loop) askAgain(h *leaseState) {
	if l.leases.watched[h.job.Seq] > 0 {
		h.conn.Send(&wire.Watch{Lease: h.lease()})
	}
	switch {
	case h.end != nil && h.running:
		h.conn.Send(&wire.Kill{Lease: h.lease(), Cause: int64(*h.end), Grace: h.grace})
	case h.end != nil, len(h.asks) > 0:
		l.drop(h)
	}
}

// running notes that an attempt runs and has the store told. The caller holds mu.
func (l *loop) running(h *leaseState, a wire.Attempt) {
	known := h.running
	h.runs()
	h.pid, h.at, h.worker = int(a.PID), queue.Millis(a.StartedAt), runner.Worker(h.conn.Dir, a.Slot)
	if !known {
		if l.draining {
			l.leases.wake()
		}
		l.session.pending.Started = append(l.session.pending.Started, store.Started{Lease: queue.Lease(a.Lease), At: h.at, Worker: h.worker, PID: h.pid})
	}
}

// listen has what a runner sends delivered to Run.
func (l *loop) listen(conn *runnerConn) {
	deliver := func(d delivery) {
		select {
		case l.inbox <- d:
		case <-l.ctx.Done():
		}
	}
	l.Go(func() {
		err := conn.Run(l.ctx, func(frames []wire.Frame) { deliver(delivery{conn, frames}) })
		close(conn.gone)
		l.mu.Lock()
		expected := l.stopping || conn.dismissed
		l.mu.Unlock()
		if l.ctx.Err() == nil && !expected {
			l.cfg.Log.Warn("lost the connection to the runner", "runner", conn.Reply.PID, "error", err)
			l.Go(func() { l.endLeft(l.ctx, conn.Dir) })
		}
		deliver(delivery{from: conn})
	})
}

// runnerGone has a runner whose connection ended connected again, or recovered if it has
// died.
func (l *loop) runnerGone(conn *runnerConn) {
	l.mu.Lock()
	l.runners.remove(conn)
	delete(l.session.acks, conn)
	needed := false
	for _, h := range l.leases.all {
		if h.conn == conn {
			h.conn, h.heard, needed = nil, conn.lived, needed || !h.over
		}
	}
	over := conn.dismissed && !needed // it was told to end, and has
	l.mu.Unlock()
	if over {
		l.session.then = append(l.session.then, func() { l.seeOut(l.ctx, conn.Dir) }) // once what it told is stored
	} else {
		l.approach(&contact{dir: conn.Dir, current: conn.current, since: time.Now()})
	}
}

// seeOut removes the folder of a runner that was told to end, and was killed before it had done so
// itself. What it told is stored by then.
func (p *Pool) seeOut(ctx context.Context, dir string) {
	dead := 0 // times that it was found so: it may be about to remove its folder
	for wait := contactFirst; wait <= contactLast && pause(ctx, wait); wait *= 2 {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			return
		}
		if lives, err := runner.Lives(dir); lives || err != nil {
			continue
		}
		by, err := p.cleaner(filepath.Dir(dir))
		if dead++; dead < 2 || err != nil {
			continue
		}
		switch {
		case by != nil:
			runner.Forget(dir, by.Client)
		case !p.cfg.Runners.Foreign():
			runner.Forget(dir, nil) // what cannot be removed now is at the next start
		}
		return
	}
}

// needsRunner starts a runner for new jobs if there is none, and none is to be expected.
func (l *loop) needsRunner() {
	l.mu.Lock()
	needed := !l.stopping && l.runners.needed()
	l.runners.spawning = l.runners.spawning || needed
	l.mu.Unlock()
	if !needed {
		return
	}
	l.spawn(false, true, func(*runnerConn, error) { l.runners.spawning, l.runners.spawnErr = false, nil })
}

// spawn starts a runner in the background, for a suspect alone, or for new jobs: then it is
// tried until there is one. Run adopts it and calls use, with mu held, with it or with why
// there is none.
func (l *loop) spawn(alone, forNew bool, use func(*runnerConn, error)) {
	l.Go(func() {
		logged := ""
		for wait := spawnFirst; ; wait = min(2*wait, spawnLast) {
			client, dir, err := l.trySpawn(l.ctx, alone)
			if err != nil && dir != "" { // it has died, or hangs
				c := &contact{dir: dir, since: time.Now()}
				l.tell(func() error { l.approach(c); return nil })
			}
			if err == nil || !forNew {
				l.tell(func() error { l.spawned(client, forNew, use, err); return nil })
				return
			}
			l.mu.Lock()
			l.runners.spawnErr = err
			stopping := l.stopping
			l.mu.Unlock()
			if l.ctx.Err() != nil || stopping {
				return
			}
			if launcher := new(runner.LauncherError); errors.As(err, &launcher) {
				wait = min(wait, launcherAgain)
			}
			if err.Error() != logged {
				l.cfg.Log.Error("could not start a runner; trying again", "error", err, "in_ms", wait.Milliseconds())
			}
			logged = err.Error()
			l.ring()
			if !pause(l.ctx, wait) {
				return
			}
		}
	})
}

// spawned adopts a runner that was started, and has it used.
func (l *loop) spawned(client *runner.Client, forNew bool, use func(*runnerConn, error), err error) {
	var conn *runnerConn
	if err == nil {
		conn = l.adopt(client, forNew)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	use(conn, err)
}

// trySpawn starts a runner and connects to it; dir is its folder, "" if there is none.
func (p *Pool) trySpawn(ctx context.Context, alone bool) (client *runner.Client, dir string, err error) {
	epoch, err := p.epoch(ctx)
	if err != nil {
		return nil, "", err
	}
	if dir, err = p.cfg.Runners.Spawn(alone); err != nil {
		return nil, "", err
	}
	client, err = runner.Connect(dir, epoch, p.cfg.Version)
	return client, dir, err
}
