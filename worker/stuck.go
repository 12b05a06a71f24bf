package worker

import (
	"path/filepath"

	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// stuckNow notes what takes workers of a runner though its attempts have ended. The
// caller holds mu.
func (p *Pool) stuckNow(conn *runnerConn, attempts []wire.Attempt) {
	if len(attempts) < len(conn.stuck) {
		p.cfg.Log.Info("what outlived SIGKILL is gone; its worker is free", "left", len(attempts))
	}
	conn.stuck = attempts
}

// taken is how many workers are taken by what outlives SIGKILL. The caller holds mu.
func (p *Pool) taken() (n int) {
	for _, conn := range p.clients {
		n += p.takenBy(conn)
	}
	return n
}

// takenBy is how many of them a runner has. An account may have its runner say anything: of
// one that new jobs do not go to none counts, and of the others one worker at least is left.
// The caller holds mu.
func (p *Pool) takenBy(conn *runnerConn) int {
	switch {
	case !runner.OfAnAccount(conn.Dir):
		return len(conn.stuck)
	case filepath.Dir(conn.Dir) != p.cfg.Runners.Root():
		return 0
	}
	return min(len(conn.stuck), max(p.target-1, 0))
}

// fit is how many of the wanted workers can run jobs. The caller holds mu.
func (p *Pool) fit() int {
	least := 0
	if p.cfg.Runners.As != "" {
		least = min(p.target, 1)
	}
	return max(least, p.target-p.taken())
}
