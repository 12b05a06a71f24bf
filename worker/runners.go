package worker

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// runners is the set of this service's runners: those that are connected, and the ways to
// those that are not. The caller of its methods holds the pool's mu.
type runners struct {
	cfg       *Config
	clients   []*runnerConn       // the last one takes new jobs
	contacts  map[string]*contact // runners that are not connected, by folder
	connected chan struct{}       // closed, and made anew, when a runner is connected
	spawning  bool                // a runner for new jobs is being started
	spawnErr  error               // why none could be, the last time
}

// runnerConn is a runner that is connected. Its fields are guarded by the pool's mu, but for
// gone.
type runnerConn struct {
	*runner.Client
	current   bool
	heard     time.Time // last, or asked in vain: it is asked again after a while
	lived     time.Time // heard last
	asking    bool      // whether it lives
	silent    bool      // it does not answer
	gone      chan struct{}
	dismissed bool           // told to end, for it has run what it was for
	owner     *owner         // whose jobs alone it runs, nil if it is for all
	stuck     []wire.Attempt // that take its workers
	set       wire.Setup     // what it was told last
}

// current is the runner that new jobs go to, nil if there is none.
func (r *runners) current() *runnerConn {
	if n := len(r.clients); n > 0 && r.clients[n-1].current {
		return r.clients[n-1]
	}
	return nil
}

// add takes a connection into use, and tells those who wait for one.
func (r *runners) add(conn *runnerConn) {
	if conn.current {
		for _, other := range r.clients {
			other.current = false
		}
		r.clients = append(r.clients, conn)
	} else {
		r.clients = append([]*runnerConn{conn}, r.clients...)
	}
	close(r.connected)
	r.connected = make(chan struct{})
}

// remove forgets a connection that has ended.
func (r *runners) remove(conn *runnerConn) {
	r.clients = slices.DeleteFunc(r.clients, func(c *runnerConn) bool { return c == conn })
	conn.forsake()
}

// fits reports whether new jobs go to a runner that an earlier service started: it must have this version, take any
// job, and be of the kind and have the job_tmpdir that the settings ask for. One that this service has just started
// takes new jobs whatever its version, because the program on the disk may be newer than this one.
func (r *runners) fits(c *runner.Client) bool {
	return c.Reply.Version == r.cfg.Version && !runner.Isolated(c.Dir) && filepath.Dir(c.Dir) == r.cfg.Runners.Root() && r.cfg.Runners.HasTmpdir(c.Dir)
}

// needed reports whether there is no runner for new jobs, and none is to be expected.
func (r *runners) needed() bool {
	for _, c := range r.contacts {
		if (c.current || c.initial) && !c.dead && time.Since(c.since) < againWithin {
			return false
		}
	}
	return r.current() == nil && !r.spawning
}

// adopting reports whether a runner that was there at the start is not found yet.
func (r *runners) adopting() bool {
	for _, c := range r.contacts {
		if c.initial {
			return true
		}
	}
	return false
}

// folders are those of the runners that may have leases, appended to others.
func (r *runners) folders(dirs []string) []string {
	for _, conn := range r.clients {
		if !conn.dismissed {
			dirs = append(dirs, conn.Dir)
		}
	}
	for dir, c := range r.contacts {
		if !c.unknown {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// unreached lists the folders of runners that have been out of reach for so long.
func (r *runners) unreached(within time.Duration) (dirs []string) {
	for dir, c := range r.contacts {
		if !c.dead && time.Since(c.since) >= within {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// fellSilent notes that a runner does not answer: new jobs go to another one.
func (r *runners) fellSilent(conn *runnerConn) {
	select {
	case <-conn.gone:
		return
	default:
	}
	conn.heard = time.Now() // asked again after a while
	if !conn.silent {
		conn.silent, conn.current = true, false
		conn.forsake()
		r.cfg.Log.Error("the runner does not answer; new jobs go to another runner", "runner", conn.Reply.PID)
	}
}

// heard notes a sign of life of a runner, and reports whether it had been silent.
func (r *runners) heard(conn *runnerConn) bool {
	select {
	case <-conn.gone:
		return false
	default:
	}
	was := conn.silent
	conn.heard, conn.silent = time.Now(), false
	conn.lived = conn.heard
	if was {
		if r.current() == nil && !r.spawning && r.fits(conn.Client) {
			conn.current = true
			r.clients = append(slices.DeleteFunc(r.clients, func(c *runnerConn) bool { return c == conn }), conn)
		}
		r.cfg.Log.Info("the runner answers again", "runner", conn.Reply.PID)
	}
	return was
}

// stuck notes what takes workers of a runner though its attempts have ended.
func (r *runners) stuck(conn *runnerConn, attempts []wire.Attempt) {
	if len(attempts) < len(conn.stuck) {
		r.cfg.Log.Info("processes that survived SIGKILL are gone; their worker is free", "left", len(attempts))
	}
	conn.stuck = attempts
}

// forsake has a user's further jobs go to another runner than this one, if it is the
// user's own.
func (conn *runnerConn) forsake() {
	if conn.owner != nil && conn.owner.conn == conn {
		conn.owner.conn = nil
	}
}

// Refresh passes changed settings on to the runners.
func (p *Pool) Refresh() {
	p.mu.Lock()
	for _, conn := range p.runners.clients {
		conn.set = wire.Setup{}
	}
	p.mu.Unlock()
	p.setUp()
}

// setUp tells the runners how many workers each has, unless they know: those that drain
// keep what they run, the current one gets the rest.
func (p *Pool) setUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	elsewhere := 0
	for _, h := range p.leases.all {
		if (h.conn == nil || !h.conn.current) && (h.running || h.conn != nil) {
			elsewhere++
		}
	}
	for _, conn := range p.runners.clients {
		if !conn.current {
			elsewhere += p.takenBy(conn)
		}
	}
	for _, conn := range p.runners.clients {
		n := elsewhere
		switch {
		case runner.Isolated(conn.Dir):
			n = 1
		case conn.current:
			n = max(0, p.target-elsewhere)
		case conn.owner != nil:
			n = p.target
		}
		if set := (wire.Setup{Workers: int64(n), SettleDelay: p.cfg.SettleDelay(), StopTimeout: p.cfg.StopTimeout()}); set != conn.set {
			conn.set = set
			conn.Send(&set)
		}
	}
}

// dismissIdle ends the runners that take no new jobs once they have run what they had:
// those of one job, or of one user, and those of another version or kind than new jobs go
// to.
// See docs/decisions/0051.
func (l *loop) dismissIdle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.runners.clients {
		if conn.current || conn.dismissed || conn.silent || l.takenBy(conn) > 0 || len(l.session.acks[conn]) > 0 || conn.owner != nil && time.Since(conn.owner.used) < ownerIdle {
			continue
		}
		if !l.leases.busy(conn) {
			conn.forsake()
			conn.dismissed = true
			conn.Send(&wire.Shutdown{})
		}
	}
}

// Connected is closed once another runner is connected: what a lost connection kept from
// being read may be read again.
func (p *Pool) Connected() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runners.connected
}

// hear asks runners that have been silent whether they live, all at once.
func (p *Pool) hear(ctx context.Context) {
	p.mu.Lock()
	clients := slices.DeleteFunc(slices.Clone(p.runners.clients), func(conn *runnerConn) bool { return conn.silent || time.Since(conn.heard) < p.cfg.HeardEvery() })
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, heardWithin)
	defer cancel()
	p.reachAll(ctx, clients)
}

// reachAll asks runners for a sign of life, and reports which gave one.
func (p *Pool) reachAll(ctx context.Context, clients []*runnerConn) []bool {
	lives := make([]bool, len(clients))
	var asks sync.WaitGroup
	for i, conn := range clients {
		asks.Go(func() { lives[i] = p.reach(ctx, conn) })
	}
	asks.Wait()
	return lives
}

// reach asks a runner for a sign of life and reports whether there was one.
func (p *Pool) reach(ctx context.Context, conn *runnerConn) bool {
	_, err := conn.Read(ctx, wire.Lease{}, [2]int64{}, nil)
	if err != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runners.heard(conn) {
		p.ring()
	}
	return true
}

// Runners asks all runners for a sign of life and lists their pids: those that gave
// one within a while, and those that did not.
func (p *Pool) Runners(within time.Duration) (live, silent []int64) {
	p.mu.Lock()
	clients := slices.Clone(p.runners.clients)
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	for i, lives := range p.reachAll(ctx, clients) {
		if lives {
			live = append(live, clients[i].Reply.PID)
		} else {
			silent = append(silent, clients[i].Reply.PID)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, dir := range p.runners.unreached(within) {
		silent = append(silent, runner.PID(dir))
	}
	return live, silent
}

// Purge has output files deleted that only runners can delete: by one of each folder that
// has any, the newest that answers. It reports whether all these have, and whether there
// was one.
func (p *Pool) Purge(ctx context.Context, refs []string) bool {
	p.mu.Lock()
	clients := slices.Clone(p.runners.clients)
	p.mu.Unlock()
	purged := map[string]bool{} // by the folder that the runners share
	for _, conn := range slices.Backward(clients) {
		root := filepath.Dir(conn.Dir)
		within, cancel := context.WithTimeout(ctx, purgedWithin)
		purged[root] = purged[root] || conn.Purge(within, refs) == nil
		cancel()
	}
	return len(purged) > 0 && !slices.Contains(slices.Collect(maps.Values(purged)), false)
}
