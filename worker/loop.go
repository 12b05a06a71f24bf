package worker

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// loop is Run's part of a pool: its goroutine alone uses it, but for background, by which
// others hand it what they have come to.
type loop struct {
	*Pool
	background
	session   session
	recovery  recovery
	isolation isolation
	mean      time.Duration // of recent runs
	short     shortage      // of the machine's resources
	telling   telling
}

// background is what goes on beside Run, until ctx ends.
type background struct {
	ctx context.Context
	sync.WaitGroup
	inbox chan delivery     // what runners send
	found chan func() error // what else Run is to deal with
	reads chan struct{}     // has room for as many reads of dependencies as go on at once
}

// delivery is what a runner has sent at once.
type delivery struct {
	from   *runnerConn
	frames []wire.Frame // nil: the connection has ended
}

// tell has Run deal with what a goroutine has come to, unless Run ends.
func (b *background) tell(deal func() error) {
	select {
	case b.found <- deal:
	case <-b.ctx.Done():
	}
}

// pause waits for a while and reports whether ctx goes on.
func pause(ctx context.Context, wait time.Duration) bool {
	select {
	case <-time.After(wait):
		return true
	case <-ctx.Done():
		return false
	}
}

// Run adopts what runs, settles what has ended, and then claims and runs jobs
// until ctx ends; what runs then goes on in the runner. ready is called when
// what was left has been dealt with, or after adoptWithin: a runner that hangs is
// adopted whenever it answers. An error means that the store or the runners
// cannot be used any more.
func (p *Pool) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	l := &loop{
		Pool: p, background: background{ctx: ctx, inbox: make(chan delivery, 64), found: make(chan func() error, 64), reads: make(chan struct{}, depsReads)},
		session:   session{store: p.store, log: p.cfg.Log, acks: map[*runnerConn][]wire.Lease{}, retry: retryFirst},
		isolation: isolation{owners: map[int]*owner{}, pause: pauseFirst},
		short:     shortage{pause: pauseFirst},
	}
	defer l.Wait()
	defer cancel()
	if err := l.takeOver(); err != nil {
		return err
	}
	l.needsRunner()
	err := l.adoptAll()
	if err == nil {
		err = l.flush()
	}
	if err == nil {
		l.dismissIdle() // those that were started for a job that never came
		ready()
	}
	for err == nil {
		err = l.step()
	}
	if ctx.Err() != nil {
		return nil // that is why there was an error
	}
	return err
}

// adoptAll waits for what was there when the service started.
func (l *loop) adoptAll() error {
	within := time.After(adoptWithin)
	for l.adopting() {
		if over, err := l.next(within); over || err != nil {
			return err
		}
		l.needsRunner()
	}
	return nil
}

// adopting reports whether what was there at the start is not all found yet.
func (l *loop) adopting() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runners.adopting() || l.recovery.seeking || l.runners.current() == nil && !l.stopping && l.runners.spawnErr == nil
}

// next waits for something to happen and deals with it, or for the timer: then it is over.
func (l *loop) next(timer <-chan time.Time) (over bool, err error) {
	select {
	case <-l.ctx.Done():
		return false, l.ctx.Err()
	case d := <-l.inbox:
		l.deliver(d)
	case deal := <-l.found:
		return false, deal()
	case <-l.kick:
	case <-timer:
		return true, nil
	}
	return false, nil
}

// step waits for something to happen and deals with it and all else that has
// happened by then, in one turn with the store.
func (l *loop) step() error {
	_, err := l.next(time.After(l.nextTimer()))
	for err == nil && len(l.inbox) > 0 {
		l.deliver(<-l.inbox)
	}
	for err == nil && len(l.found) > 0 {
		err = (<-l.found)()
	}
	if err != nil {
		return err
	}
	l.dropStale()
	l.askSilent()
	l.needsRunner()
	l.settleLost()
	err = l.flush()
	l.dismissIdle()
	l.setUp()
	return err
}

// nextTimer is how long nothing may happen before something is due.
func (l *loop) nextTimer() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	wait := time.Hour
	now := time.Now()
	for _, h := range l.leases.all {
		switch {
		case h.running || h.over || h.waiting || h.begun && !l.looksAgain(h):
		case h.conn != nil && !h.dropSent && !h.begun:
			wait = min(wait, h.sent.Add(staleAfter).Sub(now))
		default:
			wait = min(wait, max(h.sent.Add(startBy+startSpare).Sub(now), time.Second))
		}
	}
	for _, c := range l.runners.contacts { // then another runner is needed
		if left := c.since.Add(againWithin).Sub(now); left > 0 {
			wait = min(wait, left)
		}
	}
	if at := l.telling.due(); !at.IsZero() {
		wait = min(wait, at.Sub(now))
	}
	for _, conn := range l.runners.clients {
		if l.asks(conn) {
			wait = min(wait, conn.heard.Add(l.cfg.HeardEvery()).Sub(now))
		}
	}
	// Until due flush does nothing. One that has just passed it deals with.
	if at := cmp.Or(l.session.due, l.paused); !at.IsZero() {
		wait = min(wait, at.Sub(now))
	}
	return max(wait, time.Millisecond)
}

// dropStale recalls the jobs that a runner has not started, if one of them has waited there for staleAfter: its workers
// are all busy, and would hold these jobs for long while others may rank higher. A job whose start hangs does not wait
// for a worker, so it causes no recall. Jobs that a runner does not give back, because it hangs or cannot be reached,
// return once it is too late to start them.
func (l *loop) dropStale() {
	stale, late := map[*runnerConn]bool{}, map[place][]*leaseState{}
	l.mu.Lock()
	for _, h := range l.leases.all {
		switch since := time.Since(h.sent); {
		case h.over || h.running:
		case h.waiting && (h.dropSent || len(h.asks) > 0):
			l.giveBack(h)
		case h.waiting:
		case h.conn == nil:
			if (!h.begun || l.looksAgain(h)) && since >= startBy+startSpare {
				late[place{dir: h.dir}] = append(late[place{dir: h.dir}], h)
			}
		case !h.dropSent && !h.begun && since >= staleAfter:
			stale[h.conn] = true
		case (h.dropSent && !h.begun && h.conn.silent || l.looksAgain(h)) && since >= startBy+startSpare:
			late[place{h.conn, h.dir}] = append(late[place{h.conn, h.dir}], h)
		}
	}
	for conn := range stale {
		l.dropWaiting(conn)
	}
	l.mu.Unlock()
	for at, list := range late {
		l.expire(at, list)
	}
}

// looksAgain reports whether a drain waits for a job that an unresponsive or unreachable runner has begun. For such a
// job, the runner's notes are read repeatedly until they name the process. The caller holds mu.
func (l *loop) looksAgain(h *leaseState) bool {
	return l.draining && h.begun && !h.launched && (h.conn == nil || h.conn.silent)
}

// dropWaiting recalls all jobs that wait in a runner. If it is the current one, jobs run for longer than was expected,
// so fewer are claimed ahead. The caller holds mu.
func (l *loop) dropWaiting(conn *runnerConn) {
	take := l.dropUnstarted
	if conn.current {
		take, l.mean = l.recall, max(l.mean, staleAfter)
	}
	take(func(h *leaseState) bool { return h.conn == conn })
}

// flush records what has happened and claims what there is room for, in one
// commit, and then tells the runners.
func (l *loop) flush() error {
	s := &l.session
	if time.Now().Before(s.due) {
		return nil
	}
	s.due = time.Time{}
	if err := s.note(l.ctx, l.folders()); err != nil {
		return s.failed(err)
	}
	l.mu.Lock()
	capacity, workers, recalls := l.capacity(), l.fit(), l.recalls
	l.telling.take(time.Now(), &s.pending)
	l.mu.Unlock()
	turn, then := s.pending, len(s.then)
	if s.cancel == nil {
		turn.Want = capacity
	} else if capacity == 0 || workers < s.awaited {
		s.cancel() // else it would claim what there is no room for
	}
	var remarks []remark
	if len(turn.Started)+len(turn.Progress)+len(turn.Ended)+len(turn.Released)+len(turn.Changed) > 0 { // else waiting claims as well
		if l.cfg.UserQuota != nil {
			turn.MaxBytesUser = l.cfg.UserQuota()
		}
		turned, err := s.store.Exchange(context.WithoutCancel(l.ctx), turn) // it happened: a stop must not lose it
		if err != nil {
			return s.failed(err)
		}
		failpoint.Hit("settled")
		s.retry = retryFirst
		remarks = l.recorded(turn, turned.Refused)
		failpoint.Hit("before-ack")
		l.startAll(turned.Jobs, true)
		capacity -= len(turned.Jobs)
	}
	s.acknowledge() // also results that were stored by an earlier service
	s.report(remarks)
	for _, do := range s.then[:then] {
		l.Go(do) // it may be large folders that go
	}
	s.then = s.then[then:]
	if capacity > 0 && s.cancel == nil && len(s.pending.Released) == 0 { // else those go first
		l.await(capacity, workers, recalls)
	}
	return nil
}

// deliver deals with what a runner has sent.
func (l *loop) deliver(d delivery) {
	if d.frames == nil {
		l.runnerGone(d.from)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runners.heard(d.from)
	for _, f := range d.frames {
		switch f := f.(type) {
		case *wire.Started:
			if h := l.leases.all[queue.Lease(f.Lease)]; h != nil && h.conn == d.from {
				l.running(h, f.Attempt)
			}
		case *wire.Telling:
			if h := l.leases.all[queue.Lease(f.Lease)]; h != nil && h.conn == d.from {
				l.telling.heard(h, f.Progress)
			}
		case *wire.Result:
			l.result(d.from, f)
		case *wire.Dropped:
			l.dropped(d.from, f)
		case *wire.Stuck:
			l.runners.stuck(d.from, f.Attempts)
		}
	}
}

// result settles an attempt. It counts from the runner alone that holds the lease. The
// caller holds mu.
func (l *loop) result(from *runnerConn, r *wire.Result) {
	h := l.leases.all[queue.Lease(r.Lease)]
	if h != nil && h.conn != from {
		return
	}
	l.session.acks[from] = append(l.session.acks[from], r.Lease)
	if h == nil {
		l.ring() // stored already, or given up: acknowledged with the next turn
		return
	}
	if h.over {
		return // told again by another connection
	}
	h.over = true
	if r.Cause == int64(queue.Stopped) && h.end != nil {
		r.Cause = int64(*h.end) // somebody has cancelled it since
	}
	h.returned = r.Cause == int64(queue.Stopped)
	s := l.settlement(h, r, from.Dir)
	h.blame(&s)
	l.session.pending.Started = slices.DeleteFunc(l.session.pending.Started, func(st store.Started) bool { return st.Lease == s.Lease }) // its end says so too
	l.learn(h, r)
	l.session.settle(s)
}

// dropped gives back what was not started, or ends what was. The caller holds mu.
func (l *loop) dropped(from *runnerConn, f *wire.Dropped) {
	h := l.leases.all[queue.Lease(f.Lease)]
	if h == nil || h.over || h.conn != from {
		return
	}
	h.dropSent, h.recalled, h.sent = false, false, time.Now()
	if f.Dropped {
		l.giveBack(h)
		return
	}
	h.begun = true // it is running, and will say so
	l.leases.wake()
	if h.end != nil {
		h.conn.Send(&wire.Kill{Lease: f.Lease, Cause: int64(*h.end), Grace: h.grace})
	}
	for _, a := range h.asks {
		a.answer <- ErrRuns
	}
	h.asks = nil
}

// giveBack returns a lease that was never started, changed as the first that asked has
// it. The caller holds mu.
func (l *loop) giveBack(h *leaseState) {
	h.over = true
	if at := slices.IndexFunc(h.asks, func(a *pendingChange) bool { return !a.release }); at >= 0 {
		h.carried = h.asks[at]
		l.session.pending.Changed = append(l.session.pending.Changed, store.Changed{Lease: h.job.Lease(), Change: h.carried.Change})
	} else {
		h.returned = true
		l.session.pending.Released = append(l.session.pending.Released, h.job.Lease())
	}
	l.ring()
}
