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

// runners holds the runners of this service: connections and contacts. Callers of its methods hold
// the pool's mu.
type runners struct {
	cfg       *Config
	clients   []*runnerConn       // connections; the last one takes new jobs if it is current
	contacts  map[string]*contact // runners that are not connected, by directory
	connected chan struct{}       // closed and replaced when a runner is connected
	spawning  bool                // a runner for new jobs is starting
	spawnErr  error               // error of the last attempt to start one
}

// runnerConn is a connected runner. The pool's mu guards its fields, except gone.
type runnerConn struct {
	*runner.Client
	current bool
	// heard is the time of the last message or of the last failed liveness check; the next check is
	// HeardEvery later.
	heard  time.Time
	lived  time.Time // time of the last message
	asking bool      // a liveness check is in progress
	silent bool      // the runner is unresponsive
	// gone is closed when the connection has ended.
	gone      chan struct{}
	dismissed bool           // a Shutdown was sent, since it has finished its jobs
	owner     *owner         // user whose jobs it runs; nil if it is not one user's
	stuck     []wire.Attempt // ended attempts whose processes still occupy workers
	set       wire.Setup     // last Setup frame sent
}

// current returns the runner for new jobs, or nil.
func (r *runners) current() *runnerConn {
	if n := len(r.clients); n > 0 && r.clients[n-1].current {
		return r.clients[n-1]
	}
	return nil
}

// add adds a connection and wakes the callers that wait for one.
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

// remove removes a connection that has ended.
func (r *runners) remove(conn *runnerConn) {
	r.clients = slices.DeleteFunc(r.clients, func(c *runnerConn) bool { return c == conn })
	conn.forsake()
}

// fits reports whether a runner that an earlier service started can take new jobs. It must have
// this version, take any job, and be of the kind and have the job_tmpdir that the settings require.
// A runner that this service has started takes new jobs whatever its version, because the program
// on disk may be newer than this one.
func (r *runners) fits(c *runner.Client) bool {
	return c.Reply.Version == r.cfg.Version && !runner.Isolated(c.Dir) && filepath.Dir(c.Dir) == r.cfg.Runners.Root() && r.cfg.Runners.HasTmpdir(c.Dir)
}

// needed reports whether no runner for new jobs exists and none is expected soon.
func (r *runners) needed() bool {
	for _, c := range r.contacts {
		if (c.current || c.initial) && !c.dead && time.Since(c.since) < againWithin {
			return false
		}
	}
	return r.current() == nil && !r.spawning
}

// adopting reports whether some runner that existed at the start is neither connected nor
// recovered.
func (r *runners) adopting() bool {
	for _, c := range r.contacts {
		if c.initial {
			return true
		}
	}
	return false
}

// folders appends the directories of all runners that may hold leases to dirs.
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

// unreached returns the directories of runners that have been unreachable for at least the time
// within.
func (r *runners) unreached(within time.Duration) (dirs []string) {
	for dir, c := range r.contacts {
		if !c.dead && time.Since(c.since) >= within {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// fellSilent marks a runner as unresponsive. New jobs go to another runner.
func (r *runners) fellSilent(conn *runnerConn) {
	select {
	case <-conn.gone:
		return
	default:
	}
	conn.heard = time.Now() // delays the next liveness check
	if !conn.silent {
		conn.silent, conn.current = true, false
		conn.forsake()
		r.cfg.Log.Error("the runner does not answer; new jobs go to another runner", "runner", conn.Reply.PID)
	}
}

// heard records that a runner is alive. It reports whether the runner was unresponsive before.
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

// stuck records the ended attempts whose processes still occupy workers of a runner.
func (r *runners) stuck(conn *runnerConn, attempts []wire.Attempt) {
	if len(attempts) < len(conn.stuck) {
		r.cfg.Log.Info("processes that survived SIGKILL are gone; their worker is free", "left", len(attempts))
	}
	conn.stuck = attempts
}

// forsake unlinks the runner from its user, if it is a user's separate runner. The user's next jobs
// get another one.
func (conn *runnerConn) forsake() {
	if conn.owner != nil && conn.owner.conn == conn {
		conn.owner.conn = nil
	}
}

// Refresh sends changed settings to the runners.
func (p *Pool) Refresh() {
	p.mu.Lock()
	for _, conn := range p.runners.clients {
		conn.set = wire.Setup{}
	}
	p.mu.Unlock()
	p.setUp()
}

// setUp sends each runner its number of workers, if that has changed. A runner that takes no new
// jobs gets enough for its running jobs, and the current runner gets the rest.
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

// dismissIdle ends runners that take no new jobs and have finished theirs. These are separate
// runners of one job or user, and runners of another version or kind than the current one.
// See docs/decisions/0051.
func (l *loop) dismissIdle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.runners.clients {
		if conn.current || conn.dismissed || conn.silent || l.takenBy(conn) > 0 || len(l.session.acks[conn]) > 0 || conn.owner != nil && time.Since(conn.owner.used) < ownerIdle {
			continue
		}
		if !l.leases.anyHeldBy(conn) {
			conn.forsake()
			conn.dismissed = true
			conn.Send(&wire.Shutdown{})
		}
	}
}

// Connected returns a channel that is closed when another runner is connected. A caller whose read
// failed because a connection was lost can then try again.
func (p *Pool) Connected() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runners.connected
}

// hear checks concurrently that runners are alive from which no message has arrived for a while.
func (p *Pool) hear(ctx context.Context) {
	p.mu.Lock()
	clients := slices.DeleteFunc(slices.Clone(p.runners.clients), func(conn *runnerConn) bool { return conn.silent || time.Since(conn.heard) < p.cfg.HeardEvery() })
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, heardWithin)
	defer cancel()
	p.reachAll(ctx, clients)
}

// reachAll checks concurrently that runners are alive. It reports for each whether it answered.
func (p *Pool) reachAll(ctx context.Context, clients []*runnerConn) []bool {
	lives := make([]bool, len(clients))
	var asks sync.WaitGroup
	for i, conn := range clients {
		asks.Go(func() { lives[i] = p.reach(ctx, conn) })
	}
	asks.Wait()
	return lives
}

// reach checks that a runner is alive, and reports whether it answered. It reads the output of a
// lease that does not exist.
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

// Runners checks that all runners are alive. It returns the pids of those that answered within the
// given time, and of those that did not.
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

// Purge deletes output files that only runners can delete. In each directory of runners it uses the
// newest runner that answers. It reports whether this succeeded in all directories and at least one
// exists.
func (p *Pool) Purge(ctx context.Context, refs []string) bool {
	p.mu.Lock()
	clients := slices.Clone(p.runners.clients)
	p.mu.Unlock()
	purged := map[string]bool{} // by the directory that runners share
	for _, conn := range slices.Backward(clients) {
		root := filepath.Dir(conn.Dir)
		within, cancel := context.WithTimeout(ctx, purgedWithin)
		purged[root] = purged[root] || conn.Purge(within, refs) == nil
		cancel()
	}
	return len(purged) > 0 && !slices.Contains(slices.Collect(maps.Values(purged)), false)
}
