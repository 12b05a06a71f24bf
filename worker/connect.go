package worker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sync"
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
)

// contact is the way to a runner that is not connected.
type contact struct {
	dir     string
	current bool      // new jobs go to it once it is met: they did before
	initial bool      // it was there when the service started
	unknown bool      // the store knows nothing of it: if it lives it may be used, and if not nothing of ours was in it
	since   time.Time // it is tried

	dead bool  // it lives no more; guarded by the pool's mu
	err  error // why it is not met yet; guarded by the pool's mu
}

// purpose is what a runner is started for: new jobs, or those of one lease or user.
type purpose struct {
	lease queue.Lease // of a suspect, that runs alone
	owner int         // whose jobs have a runner of their own
	kind  purposeKind
}

type purposeKind uint8

const (
	forNew purposeKind = iota
	forSuspect
	forOwner
)

// finding is what came of a contact, or of the start of a runner.
type finding struct {
	contact *contact
	client  *runner.Client  // it lives and was met
	remains *runner.Remains // it is dead and was recovered: this is what it left
	by      *runner.Client  // which living runner recovered it, nil if this process did
	stays   bool            // its folder stays: there is no runner that may remove it
	spawned *purpose        // it was just started, or could not be
	strays  []queue.Lease   // leases of which no runner knows were looked for everywhere
	err     error
}

// ErrOlder means that a runner has a job with a number that the store has never given out: the
// store is older than what the runner was sent.
var ErrOlder = errors.New("the runner has jobs that were never enqueued here")

// takeOver begins to connect the runners that live and to recover dead ones. Every lease
// of an earlier service is held from now on, until its runner is found.
func (p *Pool) takeOver(ctx context.Context, loops *sync.WaitGroup) error {
	dirs, err := p.cfg.Runners.Find()
	if err != nil {
		return err
	}
	left, err := p.store.Left(ctx)
	if err != nil {
		return err
	}
	p.lastSeq, p.moved = left.LastSeq, left.Moved
	if p.moved { // it was put in the place of a newer one on purpose
		p.lastSeq = math.MaxInt64
	}
	contacts := p.contactsFor(dirs, left.Runners)
	p.unsure = slices.DeleteFunc(left.Runners, func(dir string) bool { return slices.Contains(dirs, dir) })
	p.missing = len(p.unsure) > 0
	p.mu.Lock()
	for i := range left.Leased {
		j := &left.Leased[i]
		h := p.hold(j)
		if j.State == queue.Processing {
			h.runs()
			h.worker, h.pid, h.at = j.WorkerID, j.PID, j.StartedAt
		}
	}
	p.mu.Unlock()
	for _, c := range contacts {
		p.approach(ctx, c, loops)
	}
	if len(contacts) == 0 {
		p.seekStrays(ctx, loops)
	}
	return nil
}

// maxUnknown is how many folders of an account's runners are tried of which the store
// knows nothing: one that a service did not live to note is idle and ends by itself.
const maxUnknown = 16

// contactsFor are the contacts of a start. An account may put anything into its folder: of
// one that jobs do not run as now only the runners that the store knows are tried.
func (p *Pool) contactsFor(dirs, noted []string) (list []*contact) {
	unknown := 0
	for _, dir := range dirs {
		c := &contact{dir: dir, initial: true, since: time.Now()}
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

// adopting reports whether what was there at the start is not all found yet.
func (p *Pool) adopting() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.contacts {
		if c.initial {
			return true
		}
	}
	return p.seeking || p.current() == nil && !p.stopping && p.spawnErr == nil
}

// hold holds a lease. The caller holds mu.
func (p *Pool) hold(j *queue.Job) *leaseState {
	h := &leaseState{job: *j, sent: time.Now(), heard: time.Now(), started: make(chan struct{}), done: make(chan struct{})}
	p.leases[j.Lease()], p.bySeq[j.Seq] = h, h
	return h
}

// approach tries to connect to a runner, or to recover it, until that is done.
func (p *Pool) approach(ctx context.Context, c *contact, loops *sync.WaitGroup) {
	p.mu.Lock()
	p.contacts[c.dir] = c
	p.mu.Unlock()
	loops.Go(func() {
		told := false
		for wait := contactFirst; ; wait = min(2*wait, contactLast) {
			f, err := p.look(ctx, c)
			if f != nil {
				select {
				case p.found <- *f:
				case <-ctx.Done():
				}
				return
			}
			p.mu.Lock()
			c.err = err
			p.mu.Unlock()
			if !told && time.Since(c.since) > againWithin && ctx.Err() == nil {
				told = true
				p.cfg.Log.Error("a runner cannot be reached; it is tried again, and what it runs waits for it", "folder", c.dir, "error", err)
			}
			p.ring() // another runner may be needed by now
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
		}
	})
}

// look tries once. An error is worth another try.
func (p *Pool) look(ctx context.Context, c *contact) (*finding, error) {
	lives, err := runner.Lives(c.dir)
	if err != nil {
		return nil, err
	}
	if !lives {
		return p.recover(ctx, c)
	}
	epoch, err := p.epoch(ctx) // a new one each time: an answer that came too late took the one before
	if err != nil {
		return nil, err
	}
	client, err := runner.Connect(c.dir, epoch, p.cfg.Version)
	switch {
	case errors.Is(err, runner.ErrRefused) && !runner.OfAnAccount(c.dir): // what an account says proves nothing
		return &finding{contact: c, err: fmt.Errorf("%s: %w", c.dir, err)}, nil
	case err != nil:
		return nil, err
	}
	if newest := client.Newest(); c.initial && newest > p.lastSeq && !runner.OfAnAccount(c.dir) {
		client.Close()
		return &finding{contact: c, err: fmt.Errorf("%s: %w: it has job %d, and the last one here was %d", c.dir, ErrOlder, newest, p.lastSeq)}, nil
	}
	return &finding{contact: c, client: client}, nil
}

// recover ends what a dead runner has left alive, and reads what it noted.
func (p *Pool) recover(ctx context.Context, c *contact) (*finding, error) {
	p.mu.Lock()
	c.dead = true
	leased, sent := p.leasedIn(c.dir)
	p.mu.Unlock()
	p.ring()
	f := &finding{contact: c, stays: true, remains: &runner.Remains{SameBoot: true}}
	if c.unknown {
		return f, nil
	}
	by, err := p.cleaner(filepath.Dir(c.dir))
	if err != nil {
		return nil, err
	}
	if f.stays = by == nil && p.cfg.Runners.Foreign(); f.stays {
		*f.remains, err = runner.Read(c.dir, leased)
	} else {
		*f.remains, f.by, err = p.recoverBy(ctx, by, c.dir, leased, sent)
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// recoverBy is runner.Recover by a runner, for as long as that answers; by nil is this
// process.
func (p *Pool) recoverBy(ctx context.Context, by *runnerConn, dir string, leased, sent []wire.Attempt) (runner.Remains, *runner.Client, error) {
	if by == nil {
		r, err := runner.Recover(ctx, dir, leased, sent, nil)
		return r, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() {
		for {
			select {
			case <-time.After(aliveEvery):
			case <-ctx.Done():
				return
			}
			within, done := context.WithTimeout(ctx, aliveWithin)
			lives := p.reach(within, by)
			done()
			if !lives && ctx.Err() == nil {
				p.mu.Lock()
				p.fellSilent(by)
				p.mu.Unlock()
				cancel()
			}
		}
	})
	defer cancel()
	r, err := runner.Recover(ctx, dir, leased, sent, by.Client)
	return r, by.Client, err
}

// leasedIn lists the leases that may be a dead runner's, and those of them that are known to
// have been sent to it: of others a living runner may run the trees. The caller holds mu.
func (p *Pool) leasedIn(dir string) (list, sent []wire.Attempt) {
	for lease, h := range p.leases {
		if h.conn != nil || h.over || h.waiting && h.dir == "" || h.dir != "" && h.dir != dir {
			continue
		}
		a := wire.Attempt{Lease: wire.Lease(lease), PID: int64(h.pid), StartedAt: int64(h.at)}
		list = append(list, a)
		if h.dir == dir {
			sent = append(sent, a)
		}
	}
	return list, sent
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
	for _, conn := range p.clients {
		if filepath.Dir(conn.Dir) == root && !conn.silent {
			return conn, nil
		}
	}
	for other, c := range p.contacts {
		if filepath.Dir(other) == root && !c.dead {
			return nil, errors.New("no runner is connected yet that may deal with what this one has left")
		}
	}
	if root == p.cfg.Runners.Root() && !p.stopping {
		return nil, errors.New("no runner has started yet that may deal with what this one has left")
	}
	return nil, nil
}

// foundRunner deals with what came of a contact.
func (p *Pool) foundRunner(ctx context.Context, f finding, loops *sync.WaitGroup) error {
	if f.spawned != nil {
		p.spawnedRunner(ctx, f, loops)
		return nil
	}
	if f.contact == nil {
		p.settleStrays(f)
		return nil
	}
	if f.err != nil {
		return f.err
	}
	p.mu.Lock()
	delete(p.contacts, f.contact.dir)
	p.mu.Unlock()
	if f.client != nil {
		p.adopt(ctx, f.client, f.contact.current || p.fits(f.client), loops)
	} else {
		p.settleRemains(f)
	}
	p.abandon(f)
	if f.contact.initial && !p.initialLeft() {
		p.seekStrays(ctx, loops)
	}
	return nil
}

func (p *Pool) initialLeft() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.contacts {
		if c.initial {
			return true
		}
	}
	return false
}

// fits reports whether new jobs go to a runner that was there: one of this version, for
// all jobs, and of the kind that the settings ask for. One that was just started takes
// them whatever its version: the program on the disk may be newer than this one.
func (p *Pool) fits(c *runner.Client) bool {
	return c.Reply.Version == p.cfg.Version && !runner.Isolated(c.Dir) && filepath.Dir(c.Dir) == p.cfg.Runners.Root()
}

// adopt takes over what a runner has.
func (p *Pool) adopt(ctx context.Context, c *runner.Client, current bool, loops *sync.WaitGroup) *runnerConn {
	now := time.Now()
	conn := &runnerConn{Client: c, current: current, heard: now, lived: now, gone: make(chan struct{})}
	p.mu.Lock()
	for _, a := range c.Reply.Attempts {
		h := p.leases[queue.Lease(a.Lease)]
		switch {
		case h == nil: // it was given up: nobody waits for it
			p.cfg.Log.Warn("a runner has a job that this queue has not handed out, or has given up; it is ended", "runner", c.Reply.PID, "seq", a.Seq, "pid", a.PID)
			conn.Send(&wire.Drop{Lease: a.Lease}, &wire.Kill{Lease: a.Lease, Cause: int64(queue.Stopped), Grace: runner.StopGrace()})
			continue
		case h.conn != nil:
			continue // it is another runner's
		}
		p.take(h, conn)
		if a.PID != 0 {
			p.running(h, a)
		}
		p.askAgain(h)
	}
	for _, lease := range c.Reply.Ended {
		if h := p.leases[queue.Lease(lease)]; h != nil && h.conn == nil {
			p.take(h, conn)
			h.runs()
		}
	}
	if conn.current {
		for _, other := range p.clients {
			other.current = false
		}
		p.clients = append(p.clients, conn)
	} else {
		p.clients = append([]*runnerConn{conn}, p.clients...)
	}
	p.announce()
	p.mu.Unlock()
	p.listen(ctx, conn, loops)
	p.setUp()
	p.cfg.Log.Debug("runner met", "pid", c.Reply.PID, "running", len(c.Reply.Attempts), "ended", len(c.Reply.Ended))
	return conn
}

// announce tells those who wait for a runner that one is connected. The caller holds mu.
func (p *Pool) announce() {
	close(p.connected)
	p.connected = make(chan struct{})
}

// Connected is closed once another runner is connected: what a lost connection kept from
// being read may be read again.
func (p *Pool) Connected() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.connected
}

// take holds a lease by a connection; what is asked of it stays asked. The caller holds
// mu.
func (p *Pool) take(h *leaseState, conn *runnerConn) {
	h.conn, h.dir, h.sent, h.asked, h.waiting = conn, conn.Dir, time.Now(), false, false
}

// askAgain repeats what may have been lost with another connection. The caller
// holds mu.
func (p *Pool) askAgain(h *leaseState) {
	lease := wire.Lease(h.job.Lease())
	if p.watched[h.job.Seq] > 0 {
		h.conn.Send(&wire.Watch{Lease: lease})
	}
	switch {
	case h.end != nil && h.running:
		h.conn.Send(&wire.Kill{Lease: lease, Cause: int64(*h.end), Grace: h.grace})
	case h.end != nil, len(h.asks) > 0:
		p.drop(h)
	}
}

// runs notes that the attempt has begun. The caller holds mu.
func (h *leaseState) runs() {
	if !h.running {
		h.running = true
		close(h.started)
	}
}

// running notes that an attempt runs and has the store told. The caller holds mu.
func (p *Pool) running(h *leaseState, a wire.Attempt) {
	known := h.running
	h.runs()
	h.pid, h.at, h.worker = int(a.PID), queue.Millis(a.StartedAt), runner.Worker(h.conn.Dir, a.Slot)
	if !known {
		p.pending.Started = append(p.pending.Started, store.Started{Lease: queue.Lease(a.Lease), At: h.at, Worker: h.worker, PID: h.pid})
	}
}

// listen has what a runner sends delivered to Run.
func (p *Pool) listen(ctx context.Context, conn *runnerConn, loops *sync.WaitGroup) {
	deliver := func(d delivery) {
		select {
		case p.inbox <- d:
		case <-ctx.Done():
		}
	}
	loops.Go(func() {
		err := conn.Run(ctx, func(frames []wire.Frame) { deliver(delivery{conn, frames}) })
		close(conn.gone)
		p.mu.Lock()
		expected := p.stopping || conn.dismissed
		p.mu.Unlock()
		if ctx.Err() == nil && !expected {
			p.cfg.Log.Warn("connection to the runner ended", "runner", conn.Reply.PID, "error", err)
		}
		deliver(delivery{from: conn})
	})
}

// epoch raises the service's epoch.
func (p *Pool) epoch(ctx context.Context) (epoch int64, err error) {
	err = p.insist(ctx, func() (err error) {
		epoch, err = p.store.NextEpoch(ctx)
		return err
	})
	return epoch, err
}

// runnerGone has a runner whose connection ended connected again, or recovered if it has
// died.
func (p *Pool) runnerGone(ctx context.Context, conn *runnerConn, loops *sync.WaitGroup) {
	p.mu.Lock()
	p.clients = slices.DeleteFunc(p.clients, func(c *runnerConn) bool { return c == conn })
	delete(p.acks, conn)
	conn.forsake()
	needed := false
	for _, h := range p.leases {
		if h.conn == conn {
			h.conn, h.heard, needed = nil, conn.lived, needed || !h.over
		}
	}
	over := conn.dismissed && !needed // it was told to end, and has
	p.mu.Unlock()
	if !over {
		p.approach(ctx, &contact{dir: conn.Dir, current: conn.current, since: time.Now()}, loops)
	}
}
