package worker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// A runner may hang, as any process may: stopped by a signal, or waiting for a disk.
// Whatever asks something of it waits for a bounded time; new jobs go to another one; and
// once it answers again all that it has goes on.

const (
	aliveWithin = 2 * time.Second // a runner answers
	aliveEvery  = time.Second     // between two questions for somebody who waits
	startSpare  = time.Second     // between the last moment for a start and the look whether it was begun
)

// asks reports whether a runner is to be asked whether it lives, once nothing was heard of it
// for a while: one that has something to run, or that was silent. The caller holds mu.
// See docs/decisions/0055.
func (l *loop) asks(conn *runnerConn) bool {
	return !conn.asking && (conn.silent || l.leases.busy(conn))
}

// askSilent asks the runners that are due whether they live.
func (l *loop) askSilent() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.runners.clients {
		if !l.asks(conn) || time.Since(conn.heard) < l.cfg.HeardEvery() {
			continue
		}
		conn.asking = true
		l.Go(func() {
			l.lives(l.ctx, conn)
			l.mu.Lock()
			defer l.mu.Unlock()
			conn.asking = false
			l.ring()
		})
	}
}

// lives asks a runner for a sign of life. If there is none in time, and ctx goes on, it is
// silent from now on.
func (p *Pool) lives(ctx context.Context, conn *runnerConn) bool {
	within, cancel := context.WithTimeout(ctx, aliveWithin)
	defer cancel()
	if p.reach(within, conn) || ctx.Err() != nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runners.fellSilent(conn)
	p.ring()
	return false
}

// place is where leases are: with a runner that is connected, or in the folder of one that
// is not, "" if that is not known.
type place struct {
	conn *runnerConn
	dir  string
}

// expire gives back leases that their runner, which hangs or cannot be reached, did not begin in
// time: it will see that it is too late. Of those that it has begun the result may be on its way.
func (l *loop) expire(at place, list []*leaseState) {
	leases := make([]wire.Lease, len(list))
	for i, h := range list {
		leases[i] = h.lease()
	}
	dirs, ok := l.perhapsAt(at)
	begun := map[wire.Lease]bool{}
	for i := 0; ok && i < len(dirs); i++ {
		var b map[wire.Lease]bool
		b, ok = runner.Begun(dirs[i], leases)
		maps.Copy(begun, b)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, h := range list {
		launched, found := begun[leases[i]]
		switch {
		case h.over || h.running || h.conn != at.conn: // meanwhile something was heard of it
		case launched:
			h.begun, h.launched = true, true
			l.leases.wake()
		case !found && !h.begun && ok:
			l.giveBack(h)
		default: // the notes cannot be read now, or do not name the process yet
			h.begun = h.begun || found
			h.sent = time.Now().Add(-startBy)
		}
	}
}

// perhapsAt are the folders of the runners that may have begun what is at a place; all is false if
// others may have.
func (l *loop) perhapsAt(at place) (dirs []string, all bool) {
	if at.conn != nil {
		return []string{at.dir}, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	all = at.dir != "" || !l.recovery.missing && !l.recovery.moved && len(l.recovery.unsure) == 0
	for dir, c := range l.runners.contacts {
		if dir == at.dir || at.dir == "" && c.initial && !c.unknown {
			dirs = append(dirs, dir)
			all = all && !c.dead
		}
	}
	return dirs, all && len(dirs) > 0
}

// waitFor waits for what a runner is asked to do to a lease: for an answer, or the
// lease's end. A runner that does not answer meanwhile is an error that names it.
func (p *Pool) waitFor(ctx context.Context, h *leaseState, answer <-chan error) (answered bool, err error) {
	for {
		select {
		case err := <-answer:
			return true, err
		case <-h.done:
			select {
			case err := <-answer:
				return true, err
			default:
				return false, nil
			}
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(aliveEvery):
			if err := p.answers(ctx, h); err != nil {
				return false, err
			}
		}
	}
}

// answers is an error unless the runner of a lease gives a sign of life.
func (p *Pool) answers(ctx context.Context, h *leaseState) error {
	p.mu.Lock()
	conn, dir := h.conn, h.dir
	out := time.Duration(0) // that its runner has been out of reach
	for _, c := range p.runners.contacts {
		if conn == nil && (c.dir == dir || dir == "" && c.initial) {
			out, dir = time.Since(c.since), c.dir
		}
	}
	p.mu.Unlock()
	if conn == nil {
		if out < aliveWithin {
			return nil
		}
		return p.silence(runner.PID(dir), h)
	}
	if p.lives(ctx, conn) {
		return ctx.Err()
	}
	select {
	case <-conn.gone:
		return nil // it is met again, or recovered
	default:
	}
	return p.silence(conn.Reply.PID, h)
}

// silence is the error about a lease whose runner does not answer.
func (p *Pool) silence(pid int64, h *leaseState) error {
	return queue.Errorf(queue.CodeUnavailable, "%s does not answer, so job %s cannot be reached; %s", NameRunner(pid), h.job.ID, p.cfg.EndHung(pid))
}

// NameRunner names a runner in a sentence about it; pid 0 is one that was never met.
func NameRunner(pid int64) string {
	if pid == 0 {
		return "a runner with an unknown pid"
	}
	return fmt.Sprintf("the runner with pid %d", pid)
}

// Silent lists the pids of the runners that do not answer, as far as has been noticed.
func (p *Pool) Silent() (pids []int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.runners.clients {
		if conn.silent {
			pids = append(pids, conn.Reply.PID)
		}
	}
	for _, dir := range p.runners.unreached(aliveWithin) {
		pids = append(pids, runner.PID(dir))
	}
	return pids
}

// NoRunner returns why no runner for new jobs could be started: a runner.LauncherError, or the error of
// the last try. It is nil if there is a runner, or if the first try has not ended.
func (p *Pool) NoRunner() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runners.current() != nil {
		return nil
	}
	return cmp.Or(p.cfg.Runners.CheckLauncher(), p.runners.spawnErr)
}

// endSilent ends the runners that do not answer, with all that they run, and has what they
// had settled as of dead ones.
func (p *Pool) endSilent() {
	p.mu.Lock()
	var dirs []string
	for _, conn := range p.runners.clients {
		if conn.silent {
			dirs = append(dirs, conn.Dir)
		}
	}
	dirs = append(dirs, p.runners.unreached(0)...)
	p.mu.Unlock()
	for _, dir := range dirs {
		p.cfg.Log.Error("ending a runner that does not answer, and its jobs", "dir", dir)
		if err := p.cfg.Runners.End(dir); err != nil {
			p.cfg.Log.Error("could not end the runner; the service takes over its jobs at its next start", "dir", filepath.Base(dir), "error", err)
		}
	}
}
