package worker

import (
	"cmp"
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

// Workers is how many workers are wanted.
func (p *Pool) Workers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

// Scale sets how many workers are wanted: more begin at once; fewer finish what
// they run.
func (p *Pool) Scale(n int) {
	p.mu.Lock()
	fewer := n < p.target
	p.target = min(max(n, 0), MaxWorkers)
	if fewer {
		p.takeBack()
	}
	p.mu.Unlock()
	p.setUp()
	p.ring()
}

// takeBack asks for all that waits in the current runner. The caller holds mu.
func (p *Pool) takeBack() {
	for _, h := range p.leases {
		if !h.running && !h.asked && (h.waiting || h.conn != nil && h.conn.current) {
			p.drop(h)
		}
	}
}

// Drain has no more jobs started, or has them started again.
func (p *Pool) Drain(on bool) {
	p.mu.Lock()
	p.draining = on
	if on {
		p.takeBack()
	}
	close(p.ended) // whoever waits looks again
	p.ended = make(chan struct{})
	p.mu.Unlock()
	p.ring()
}

// Draining reports whether no jobs are started.
func (p *Pool) Draining() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.draining
}

// Quiet waits until nothing runs, the drain is over, or ctx ends.
func (p *Pool) Quiet(ctx context.Context) error {
	for {
		p.mu.Lock()
		n, ended := len(p.leases), p.ended
		over := n == 0 || !p.draining
		p.mu.Unlock()
		if over {
			return nil
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Paused says why few jobs are claimed, if jobs could not be started for want of
// the machine's resources a moment ago.
func (p *Pool) Paused() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !time.Now().Before(p.paused) {
		return ""
	}
	return "jobs could not be started for want of processes, memory or descriptors, so fewer are claimed for a while; the service's log names them"
}

// Refresh passes changed settings on to the runners.
func (p *Pool) Refresh() {
	p.mu.Lock()
	for _, conn := range p.clients {
		conn.set = wire.Setup{}
	}
	p.mu.Unlock()
	p.setUp()
}

// Settle waits until at most n jobs run. After a while the surplus, the youngest first, is
// ended and given back, on behalf of by unless that is nil, and Settle waits for that.
// When ctx ends it waits no longer, and what was not ended yet is not. An error names a
// runner that does not answer.
func (p *Pool) Settle(ctx context.Context, within time.Duration, n int, by *int) error {
	over := time.NewTimer(within)
	defer over.Stop()
	for {
		p.mu.Lock()
		running, ended := p.heldByAge(), p.ended
		p.mu.Unlock()
		if len(running) <= n {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over.C:
			return p.endAll(ctx, running[n:], by)
		case <-ended:
		}
	}
}

// endAll ends leases, gives them back, and waits for those whose runners answer.
func (p *Pool) endAll(ctx context.Context, list []*leaseState, by *int) (err error) {
	for _, h := range list {
		p.endOne(h, queue.Stopped, by, "worker.stop")
	}
	silent := map[*runnerConn]bool{} // each is waited for once
	for _, h := range list {
		p.mu.Lock()
		conn := h.conn
		p.mu.Unlock()
		if silent[conn] {
			continue
		}
		if _, failed := p.waitFor(ctx, h, nil); failed != nil {
			err, silent[conn] = failed, true
		}
	}
	return err
}

// heldByAge lists all leases, the oldest first; a clock may be too coarse to tell those of one
// claim apart. The caller holds mu.
func (p *Pool) heldByAge() []*leaseState {
	list := make([]*leaseState, 0, len(p.leases))
	for _, h := range p.leases {
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b *leaseState) int {
		return cmp.Or(a.sent.Compare(b.sent), cmp.Compare(a.job.Seq, b.job.Seq))
	})
	return list
}

// Stop claims nothing more, lets running jobs finish for a while, then ends
// them and gives them back, and ends the runners: those that do not answer with all that
// they run. Run is to be ended after it.
func (p *Pool) Stop(ctx context.Context, within time.Duration) {
	p.mu.Lock()
	p.stopping = true
	p.mu.Unlock()
	p.Scale(0)
	if p.Settle(ctx, within, 0, nil) != nil {
		p.endSilent()
		p.Settle(ctx, runner.StopGrace(), 0, nil)
	}
	p.mu.Lock()
	clients := slices.Clone(p.clients)
	for _, conn := range clients {
		conn.dismissed = true
	}
	p.mu.Unlock()
	for _, conn := range clients {
		conn.Send(&wire.Shutdown{})
	}
	limit := time.After(2 * time.Second)
	for _, conn := range clients {
		select {
		case <-conn.gone:
		case <-limit: // it ends by itself, once nobody needs it
			return
		}
	}
}

// ErrRuns refuses a change of a job whose attempt has started.
var ErrRuns = errors.New("the job runs")

// Cancel ends a leased job for good, on behalf of uid, and waits until that, or
// how it ended before, is recorded. It reports whether the job was leased.
func (p *Pool) Cancel(ctx context.Context, seq int64, uid int) (bool, error) {
	leased, err := p.Change(ctx, seq, store.Change{Verb: queue.VerbCancel, UID: uid})
	if errors.Is(err, ErrRuns) {
		return p.end(ctx, seq, queue.Killed, uid, "cancel")
	}
	return leased, err
}

// Requeue ends what runs of a leased job, on behalf of uid, gives it back, and waits
// until that, or how it ended before, is recorded. It reports whether the job was
// leased.
func (p *Pool) Requeue(ctx context.Context, seq int64, uid int) (bool, error) {
	return p.end(ctx, seq, queue.Stopped, uid, "requeue")
}

// Change has a leased job that has not started given back and changed in the
// same commit, and waits for that; one that has started is ErrRuns. It reports
// whether the job was leased and dealt with; if not, it is the store's again.
func (p *Pool) Change(ctx context.Context, seq int64, c store.Change) (bool, error) {
	p.mu.Lock()
	h := p.bySeq[seq]
	if h == nil {
		p.mu.Unlock()
		return false, nil
	}
	if h.running || h.begun {
		p.mu.Unlock()
		return true, ErrRuns
	}
	a := &pendingChange{c, make(chan error, 1)}
	h.asks = append(h.asks, a)
	if len(h.asks) == 1 { // else it is being asked for
		p.drop(h)
	}
	p.mu.Unlock()
	answered, err := p.waitFor(ctx, h, a.answer)
	if !answered && err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		h.asks = slices.DeleteFunc(h.asks, func(o *pendingChange) bool { return o == a })
	}
	return answered || err != nil, err
}

// end ends what runs of a leased job and waits until it is settled or given back.
func (p *Pool) end(ctx context.Context, seq int64, how queue.End, uid int, verb string) (bool, error) {
	p.mu.Lock()
	h := p.bySeq[seq]
	p.mu.Unlock()
	if h == nil {
		return false, nil
	}
	p.endOne(h, how, &uid, verb)
	_, err := p.waitFor(ctx, h, nil)
	return true, later(err, "the job is ended once it does")
}

// later adds to the error about a runner that does not answer what becomes of what was asked.
func later(err error, what string) error {
	if errors.Is(err, queue.ErrUnavailable) {
		return queue.Errorf(queue.CodeUnavailable, "%v; %s", err, what)
	}
	return err
}

// endOne has a lease dropped if it has not started, or its tree ended if it has.
func (p *Pool) endOne(h *leaseState, how queue.End, by *int, verb string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.end == nil || how == queue.Killed {
		h.end, h.grace, h.by, h.verb = &how, h.job.KillAfter, by, verb
	}
	if p.stopping || by == nil || *by != h.job.UID || verb == "worker.stop" { // only its user waits for as long as the job asks
		h.grace = min(h.grace, runner.StopGrace())
	}
	switch {
	case h.conn == nil && !h.waiting: // it is told once its runner is connected
	case h.running || h.begun:
		h.conn.Send(&wire.Kill{Lease: wire.Lease(h.job.Lease()), Cause: int64(how), Grace: h.grace})
	default:
		p.drop(h)
	}
}

// drop asks for what has not started back. The caller holds mu.
func (p *Pool) drop(h *leaseState) {
	h.asked = true
	if h.conn == nil {
		p.ring() // Run gives back what waits for a runner
		return
	}
	h.conn.Send(&wire.Drop{Lease: wire.Lease(h.job.Lease())})
}

// Signal sends a signal to a running job's whole tree. It reports whether the job
// runs; an error names a runner that does not answer.
func (p *Pool) Signal(ctx context.Context, seq int64, number int) (bool, error) {
	p.mu.Lock()
	h := p.bySeq[seq]
	if h != nil && !h.running && !h.waiting && h.conn != nil {
		h.conn.Send(&wire.Watch{Lease: wire.Lease(h.job.Lease())}) // its start is told at once then
		p.mu.Unlock()
		select {
		case <-h.started:
		case <-h.done:
		case <-time.After(startedWithin):
		case <-ctx.Done():
		}
		p.mu.Lock()
	}
	if h == nil || !h.running {
		p.mu.Unlock()
		return false, nil
	}
	if h.conn != nil {
		h.conn.Send(&wire.Signal{Lease: wire.Lease(h.job.Lease()), Number: int64(number)})
	}
	p.mu.Unlock()
	return true, later(p.answers(ctx, h), "the signal is sent once it does")
}

// startedWithin is how long a signal waits to hear that its job runs: a start is told with
// the next results, but at once to who asks for it.
const startedWithin = 100 * time.Millisecond

// Watch has the end of a job told at once, whenever it runs, until stop.
func (p *Pool) Watch(seq int64) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watched[seq]++
	if h := p.bySeq[seq]; h != nil && h.conn != nil {
		h.conn.Send(&wire.Watch{Lease: wire.Lease(h.job.Lease())})
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.watched[seq]--; p.watched[seq] <= 0 {
			delete(p.watched, seq)
		}
	}
}

// Read reads output of a running job after a cursor; wait waits for some. ok is
// false when the job does not run here: its output is in the store, or will be; or its
// runner is not connected now. One that does not answer is an error that names it.
// The chunk is as wire.Chunk says.
func (p *Pool) Read(ctx context.Context, seq int64, cursor [2]int64, wait bool) (chunk *wire.Chunk, ok bool, err error) {
	p.mu.Lock()
	h := p.bySeq[seq]
	var conn *runnerConn
	if h != nil {
		conn = h.conn
	}
	p.mu.Unlock()
	if conn == nil {
		return nil, false, nil
	}
	within, cancel := ctx, func() {}
	if !wait {
		within, cancel = context.WithTimeout(ctx, aliveWithin)
	}
	defer cancel()
	chunk, err = conn.Read(within, wire.Lease(h.job.Lease()), cursor, wait)
	switch {
	case errors.Is(err, runner.ErrGone):
		return nil, false, nil // Connected tells of the next
	case err != nil && ctx.Err() == nil:
		return nil, false, p.silence(conn.Reply.PID, h)
	case err != nil || chunk.Gone:
		return nil, false, err
	}
	return chunk, true, nil
}

// Running is which attempt of a job is held here, by number; 0 is none.
func (p *Pool) Running(seq int64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.bySeq[seq]; h != nil {
		return h.job.Runs + 1
	}
	return 0
}

// Status is one worker as of now.
type Status struct {
	ID        string
	Job       string // its id; "" when idle
	PID       int
	StartedAt queue.Millis // of the job
	Heard     time.Time    // when the worker's runner was last heard
	Stale     bool
	Stuck     bool // taken by a process, PID, that outlives SIGKILL, though its job has ended
	Leaving   bool // it ends with its job: more run than are wanted
}

// List lists the workers: those that run a job, and those that could.
func (p *Pool) List() []Status {
	p.hear()
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []Status
	busy := map[string]bool{}
	for _, h := range p.heldByAge() {
		if !h.running || h.worker == "" {
			continue
		}
		busy[h.worker] = true
		w := Status{ID: h.worker, Job: h.job.ID, PID: h.pid, StartedAt: h.at, Heard: h.heard, Stale: true, Leaving: len(list) >= p.target}
		if h.conn != nil {
			w.Heard, w.Stale = h.conn.lived, h.conn.silent || time.Since(h.conn.lived) > p.cfg.StaleAfter()
		}
		list = append(list, w)
	}
	for _, conn := range p.clients {
		for _, a := range conn.stuck[:p.takenBy(conn)] {
			id := runner.Worker(conn.Dir, a.Slot)
			busy[id] = true
			list = append(list, Status{ID: id, PID: int(a.PID), StartedAt: queue.Millis(a.StartedAt), Heard: conn.lived, Stuck: true})
		}
	}
	for slot := int64(1); len(list) < p.target; slot++ {
		if id := runner.WorkerID(slot); !busy[id] {
			list = append(list, Status{ID: id, Heard: time.Now()})
		}
	}
	return list
}

// Busy is how many workers run a job, or are taken by one that could not be killed,
// as far as has been told.
func (p *Pool) Busy() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.taken()
	for _, h := range p.leases {
		if h.running {
			n++
		}
	}
	return n
}

// hear asks runners that have been silent whether they live, all at once.
func (p *Pool) hear() {
	p.mu.Lock()
	clients := slices.DeleteFunc(slices.Clone(p.clients), func(conn *runnerConn) bool { return conn.silent || time.Since(conn.heard) < p.cfg.HeardEvery() })
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), heardWithin)
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
	_, err := conn.Read(ctx, wire.Lease{}, [2]int64{}, false)
	if err == nil {
		p.mu.Lock()
		p.heard(conn)
		p.mu.Unlock()
	}
	return err == nil
}

// Runners asks all runners for a sign of life and lists their pids: those that gave
// one within a while, and those that did not.
func (p *Pool) Runners(within time.Duration) (live, silent []int64) {
	p.mu.Lock()
	clients := slices.Clone(p.clients)
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
	for dir, c := range p.contacts {
		if !c.dead && time.Since(c.since) > within {
			silent = append(silent, runner.PID(dir))
		}
	}
	return live, silent
}

// Purge has output files deleted that only runners can delete: by one of each folder that
// has any, the newest that answers. It reports whether all these have, and whether there
// was one.
func (p *Pool) Purge(ctx context.Context, refs []string) bool {
	p.mu.Lock()
	clients := slices.Clone(p.clients)
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, purgedWithin)
	defer cancel()
	purged := map[string]bool{} // by the folder that the runners share
	for _, conn := range slices.Backward(clients) {
		root := filepath.Dir(conn.Dir)
		purged[root] = purged[root] || conn.Purge(ctx, refs) == nil
	}
	for _, done := range purged {
		if !done {
			return false
		}
	}
	return len(purged) > 0
}

func (p *Pool) now() queue.Millis { return queue.MillisOf(time.Now()) }
