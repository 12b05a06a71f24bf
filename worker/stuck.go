package worker

import (
	"path/filepath"

	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// stuckNow notes what takes workers of a runner though its attempts have ended. The
// caller holds mu.
func (p *Pool) stuckNow(l *runnerConn, attempts []wire.Attempt) {
	if len(attempts) < len(l.stuck) {
		p.cfg.Log.Info("what outlived SIGKILL is gone; its worker is free", "left", len(attempts))
	}
	l.stuck = attempts
}

// taken is how many workers are taken by what outlives SIGKILL. The caller holds mu.
func (p *Pool) taken() (n int) {
	for _, l := range p.clients {
		n += p.takenBy(l)
	}
	return n
}

// takenBy is how many of them a runner has. An account may have its runner say anything: of
// one that new jobs do not go to none counts, and of the others one worker at least is left.
// The caller holds mu.
func (p *Pool) takenBy(l *runnerConn) int {
	switch {
	case !runner.OfAnAccount(l.Dir):
		return len(l.stuck)
	case filepath.Dir(l.Dir) != p.cfg.Runners.Root():
		return 0
	}
	return min(len(l.stuck), max(p.target-1, 0))
}

// fit is how many of the wanted workers can run jobs. The caller holds mu.
func (p *Pool) fit() int {
	least := 0
	if p.cfg.Runners.As != "" {
		least = min(p.target, 1)
	}
	return max(least, p.target-p.taken())
}
