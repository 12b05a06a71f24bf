package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

func itoa(n int) string { return strconv.Itoa(n) }

// takeOver meets the runners that live, ends what dead ones have left, and makes
// every lease of an earlier service held, settled or given back.
func (p *Pool) takeOver(ctx context.Context, loops *sync.WaitGroup) error {
	epoch, err := p.epoch(ctx)
	if err != nil {
		return err
	}
	live, dead, err := p.cfg.Runners.Find()
	if err != nil {
		return err
	}
	leased, err := p.store.Leased(ctx)
	if err != nil {
		return err
	}
	jobs := map[queue.Lease]*queue.Job{}
	for i := range leased {
		jobs[leased[i].Lease()] = &leased[i]
	}
	for _, dir := range live {
		if err := p.passOver(dir, p.meet(ctx, dir, epoch, false, jobs, loops)); err != nil {
			return err
		}
	}
	if p.current() == nil {
		if err := p.spawn(ctx, loops); err != nil {
			return err
		}
	}
	rebooted := false
	for _, dir := range dead {
		sameBoot, err := p.bury(ctx, dir, jobs)
		if err := p.passOver(dir, err); err != nil {
			return err
		}
		rebooted = rebooted || !sameBoot
	}
	for _, j := range jobs {
		p.unknown(j, j.State == queue.Processing, !rebooted)
	}
	return nil
}

// passOver is what goes wrong with a runner's folder, unless an account whose jobs run
// there may have brought it about: it does not keep the service from starting.
func (p *Pool) passOver(dir string, err error) error {
	if err == nil || !runner.OfAnAccount(dir) || errors.Is(err, context.Canceled) {
		return err
	}
	p.cfg.Log.Error("a runner's folder is passed over", "folder", dir, "error", err)
	return nil
}

// meet connects to a living runner and adopts what it has; what it knows is
// taken out of jobs. A fresh one was started for new jobs.
func (p *Pool) meet(ctx context.Context, dir string, epoch int64, fresh bool, jobs map[queue.Lease]*queue.Job, loops *sync.WaitGroup) error {
	c, err := runner.Meet(dir, epoch, p.cfg.Version)
	if err != nil {
		return err
	}
	p.adopt(ctx, c, fresh || p.fits(c), jobs, loops)
	return nil
}

// fits reports whether new jobs go to a runner that was there: one of this version, for
// all jobs, and of the kind that the settings ask for. One that was just started takes
// them whatever its version: the program on the disk may be newer than this one.
func (p *Pool) fits(c *runner.Client) bool {
	return c.Known.Version == p.cfg.Version && !runner.Lone(c.Dir) && filepath.Dir(c.Dir) == p.cfg.Runners.Root()
}

// adopt takes over what a runner has; what it knows is taken out of jobs.
func (p *Pool) adopt(ctx context.Context, c *runner.Client, current bool, jobs map[queue.Lease]*queue.Job, loops *sync.WaitGroup) *link {
	l := &link{Client: c, current: current, heard: time.Now(), gone: make(chan struct{})}
	p.mu.Lock()
	for _, a := range c.Known.Attempts {
		j := jobs[queue.Lease(a.Lease)]
		if j == nil {
			continue // the store has given it up: its result will be stale
		}
		h := p.take(j, l)
		if a.PID != 0 {
			p.running(h, a)
		}
		p.askAgain(h)
		delete(jobs, j.Lease())
	}
	for _, lease := range c.Known.Ended {
		if j := jobs[queue.Lease(lease)]; j != nil {
			p.take(j, l).running = true
			delete(jobs, j.Lease())
		}
	}
	if l.current {
		p.clients = append(p.clients, l)
	} else {
		p.clients = append([]*link{l}, p.clients...)
	}
	p.mu.Unlock()
	p.listen(ctx, l, loops)
	p.setUp()
	p.cfg.Log.Debug("runner met", "pid", c.Known.PID, "running", len(c.Known.Attempts), "ended", len(c.Known.Ended))
	return l
}

// take holds a lease by a connection; one that another connection had keeps who
// waits for it. The caller holds mu.
func (p *Pool) take(j *queue.Job, l *link) *held {
	h := p.held[j.Lease()]
	if h == nil {
		h = &held{job: *j, done: make(chan struct{})}
		p.held[j.Lease()], p.bySeq[j.Seq] = h, h
	}
	h.link, h.sent, h.asked = l, time.Now(), false
	return h
}

// askAgain repeats what may have been lost with another connection. The caller
// holds mu.
func (p *Pool) askAgain(h *held) {
	lease := wire.Lease(h.job.Lease())
	if p.watched[h.job.Seq] > 0 {
		h.link.Send(&wire.Watch{Lease: lease})
	}
	switch {
	case h.end != nil && h.running:
		h.link.Send(&wire.Kill{Lease: lease, Cause: int64(*h.end), Grace: h.grace})
	case h.end != nil, len(h.asks) > 0:
		p.drop(h)
	}
}

// running notes that an attempt runs and has the store told. The caller holds mu.
func (p *Pool) running(h *held, a wire.Attempt) {
	if h.running {
		return
	}
	h.running, h.slot, h.pid, h.at = true, a.Slot, int(a.PID), queue.Millis(a.StartedAt)
	p.pending.Started = append(p.pending.Started, store.Started{
		Lease: queue.Lease(a.Lease), At: h.at, Worker: runner.Worker(h.link.Dir, a.Slot), PID: h.pid,
	})
}

// listen has what a runner sends delivered to Run.
func (p *Pool) listen(ctx context.Context, l *link, loops *sync.WaitGroup) {
	deliver := func(d delivery) {
		select {
		case p.inbox <- d:
		case <-ctx.Done():
		}
	}
	loops.Go(func() {
		err := l.Run(ctx, func(frames []wire.Frame) { deliver(delivery{l, frames}) })
		close(l.gone)
		p.mu.Lock()
		stopping := p.stopping
		p.mu.Unlock()
		if ctx.Err() == nil && !stopping { // else it has been told to end
			p.cfg.Log.Warn("connection to the runner ended", "runner", l.Known.PID, "error", err)
		}
		deliver(delivery{from: l})
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

// spawn starts a runner for new jobs.
func (p *Pool) spawn(ctx context.Context, loops *sync.WaitGroup) error {
	epoch, err := p.epoch(ctx)
	if err != nil {
		return err
	}
	dir, err := p.cfg.Runners.Spawn(false)
	if err != nil {
		return err
	}
	return p.meet(ctx, dir, epoch, true, nil, loops)
}

// setUp tells the runners how many workers each has: those that drain keep what
// they run, the current one gets the rest.
func (p *Pool) setUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	elsewhere := 0
	for _, h := range p.held {
		if !h.link.current {
			elsewhere++
		}
	}
	for _, l := range p.clients {
		if !l.current {
			elsewhere += len(l.stuck)
		}
	}
	for _, l := range p.clients {
		n := elsewhere
		if runner.Lone(l.Dir) {
			n = 1
		}
		if l.current {
			n = max(0, p.target-elsewhere)
		}
		frames := []wire.Frame{&wire.Setup{Workers: int64(n), SettleDelay: p.cfg.SettleDelay()}}
		if l.Protocol() >= 2 {
			frames = append(frames, &wire.Finish{Within: p.cfg.StopTimeout()})
		}
		l.Send(frames...)
	}
}

// deliver deals with what a runner has sent.
func (p *Pool) deliver(ctx context.Context, d delivery, loops *sync.WaitGroup) error {
	if d.frames == nil {
		return p.runnerGone(ctx, d.from, loops)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	d.from.heard = time.Now()
	for _, f := range d.frames {
		switch f := f.(type) {
		case *wire.Started:
			if h := p.held[queue.Lease(f.Lease)]; h != nil {
				p.running(h, f.Attempt)
			}
		case *wire.Result:
			p.result(d.from, f)
		case *wire.Dropped:
			p.dropped(f)
		case *wire.Stuck:
			p.stuckNow(d.from, f.Attempts)
		}
	}
	return nil
}

// result settles an attempt. The caller holds mu.
func (p *Pool) result(from *link, r *wire.Result) {
	p.acks[from] = append(p.acks[from], r.Lease)
	h := p.held[queue.Lease(r.Lease)]
	if h == nil {
		p.ring() // stored already, or given up: acknowledged with the next turn
		return
	}
	if h.over {
		return // told again by another connection
	}
	h.over = true
	s := p.settlement(&h.job, r, from.Dir)
	if why := s.Decision.Reason; h.by != nil && (why == queue.ReasonCancelled || why == queue.ReasonStopped) {
		s.By, s.Verb = h.by, h.verb
	}
	p.pending.Started = slices.DeleteFunc(p.pending.Started, func(st store.Started) bool { return st.Lease == s.Lease }) // its end says so too
	if r.Shortage {
		p.short()
		p.cfg.Log.Warn("a job could not be started; claiming less for a while", "job", h.job.ID, "error", r.Error)
	} else {
		p.pause = pauseFirst
		p.measure(r)
	}
	p.pending.Ended = append(p.pending.Ended, s)
}

// short has nothing claimed for a while, which grows while shortages go on. The caller
// holds mu.
func (p *Pool) short() {
	if now := time.Now(); now.After(p.paused) { // of many that meet one shortage the first counts
		p.paused = now.Add(p.pause)
		p.pause = min(2*p.pause, pauseLast)
	}
}

// dropped gives back what was not started, or ends what was. The caller holds mu.
func (p *Pool) dropped(f *wire.Dropped) {
	h := p.held[queue.Lease(f.Lease)]
	if h == nil || h.over {
		return
	}
	h.asked, h.sent, h.over = false, time.Now(), f.Dropped
	switch {
	case f.Dropped && len(h.asks) > 0:
		p.pending.Changed = append(p.pending.Changed, store.Changed{Lease: h.job.Lease(), Change: h.asks[0].Change})
	case f.Dropped:
		p.pending.Released = append(p.pending.Released, h.job.Lease())
	default: // it is running, and will say so
		h.begun = true
		if h.end != nil {
			h.link.Send(&wire.Kill{Lease: f.Lease, Cause: int64(*h.end), Grace: h.grace})
		}
		for _, a := range h.asks {
			a.told(ErrRuns)
		}
		h.asks = nil
	}
}

// againWithin bounds how long a runner may live on after its connection broke
// without being met again.
const againWithin = 5 * time.Second

// runnerGone buries a runner that has died, or meets one again whose connection
// broke. One that obeys a newer service is not ours any more.
func (p *Pool) runnerGone(ctx context.Context, l *link, loops *sync.WaitGroup) error {
	jobs, started := p.unlink(l)
	if l.retired && len(jobs) == 0 {
		return nil // it was told to end, and has
	}
	epoch, err := p.epoch(ctx)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(againWithin); ; {
		lives, err := runner.Lives(l.Dir)
		if err != nil {
			return err
		}
		if !lives {
			return p.replace(ctx, l, jobs, started, loops)
		}
		c, err := runner.Meet(l.Dir, epoch, p.cfg.Version)
		if err == nil {
			p.adopt(ctx, c, l.current, jobs, loops)
			for lease, j := range jobs {
				p.unknown(j, started[lease], true)
			}
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("meet the runner again: %w", err)
		}
		select {
		case <-time.After(10 * time.Millisecond): // it is dying, or about to listen
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// unlink forgets a connection and lists the leases whose end is not known, and
// which of them had been started.
func (p *Pool) unlink(l *link) (jobs map[queue.Lease]*queue.Job, started map[queue.Lease]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clients = slices.DeleteFunc(p.clients, func(c *link) bool { return c == l })
	delete(p.acks, l)
	jobs, started = map[queue.Lease]*queue.Job{}, map[queue.Lease]bool{}
	for lease, h := range p.held {
		if h.link == l && !h.over {
			jobs[lease], started[lease] = &h.job, h.running
		}
	}
	return jobs, started
}

// replace buries a dead runner and starts another if new jobs need one.
func (p *Pool) replace(ctx context.Context, l *link, jobs map[queue.Lease]*queue.Job, started map[queue.Lease]bool, loops *sync.WaitGroup) error {
	p.mu.Lock()
	needed := p.current() == nil && !p.stopping
	p.mu.Unlock()
	if needed {
		if err := p.spawn(ctx, loops); err != nil {
			return err
		}
	}
	if _, err := p.bury(ctx, l.Dir, jobs); err != nil {
		return err
	}
	for lease, j := range jobs {
		p.unknown(j, started[lease], true)
	}
	return nil
}

// undertaker is a living runner that may deal with what a dead one has left, if this
// process may not; none if there is no such runner: the system has ended what it ran,
// and its folder stays.
func (p *Pool) undertaker(dir string) (by *runner.Client, none bool) {
	if !p.cfg.Runners.Foreign() {
		return nil, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.clients {
		if filepath.Dir(l.Dir) == filepath.Dir(dir) && l.Protocol() >= 2 {
			return l.Client, false
		}
	}
	return nil, true
}

// bury ends what a dead runner has left alive, and settles what it ran: by its
// journal, or as lost. What it did not know stays in jobs.
func (p *Pool) bury(ctx context.Context, dir string, jobs map[queue.Lease]*queue.Job) (sameBoot bool, err error) {
	by, none := p.undertaker(dir)
	var remains runner.Remains
	if none {
		remains, err = runner.Read(dir)
	} else {
		p.hearing(func() { remains, err = runner.Recover(ctx, dir, by) })
	}
	if err != nil {
		return false, err
	}
	var turn store.Turn
	settled := 0
	known := maps.Clone(jobs)
	for _, r := range remains.Results {
		lease := queue.Lease(r.Lease)
		j := jobs[lease]
		if j == nil {
			continue // stored already
		}
		turn.Ended = append(turn.Ended, p.settlement(j, r, dir))
		delete(jobs, lease)
		settled++
	}
	for i := range remains.Running {
		a := &remains.Running[i]
		j := jobs[queue.Lease(a.Lease)]
		if j == nil {
			continue
		}
		turn.Ended = append(turn.Ended, p.lost(j, a, howLost(remains, a.Lease), dir))
		delete(jobs, j.Lease())
	}
	for _, left := range remains.Stuck {
		p.cfg.Log.Error("a process of a dead runner outlives SIGKILL", "pid", left.PID, "runner", dir)
	}
	if lost := len(turn.Ended) - settled; lost > 0 {
		p.cfg.Log.Warn("a runner has died", "runner", dir, "results", settled, "lost", lost)
	} else {
		p.cfg.Log.Info("a runner had ended", "runner", dir, "results", settled)
	}
	if len(turn.Ended) > 0 {
		err := p.insist(ctx, func() error {
			_, err := p.store.Turn(context.WithoutCancel(ctx), turn)
			return err
		})
		if err != nil {
			return false, fmt.Errorf("record what a dead runner left: %w", err)
		}
		p.report(p.remarks(turn.Ended, func(l queue.Lease) *queue.Job { return known[l] }))
	}
	p.mu.Lock()
	for i := range turn.Ended {
		p.forget(turn.Ended[i].Lease)
	}
	p.mu.Unlock()
	if none {
		return remains.SameBoot, nil
	}
	if err := runner.Forget(dir, by); err != nil { // on Windows whoever reads a file keeps it there
		p.cfg.Log.Warn("a dead runner's folder stays, to be removed at the next start", "folder", dir, "error", err)
	}
	return remains.SameBoot, nil
}

// unknown gives back a lease of which no runner knows, or settles it as lost if
// it had been started.
func (p *Pool) unknown(j *queue.Job, started, sameBoot bool) {
	var lost []store.Settlement
	if started {
		lost = append(lost, p.lost(j, nil, howLost(runner.Remains{SameBoot: sameBoot}, wire.Lease{}), ""))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.held[j.Lease()]; h != nil {
		h.over = true
	} else {
		p.unheld = append(p.unheld, p.remarks(lost, func(queue.Lease) *queue.Job { return j })...)
	}
	p.pending.Ended = append(p.pending.Ended, lost...)
	if !started {
		p.pending.Released = append(p.pending.Released, j.Lease())
	}
}
