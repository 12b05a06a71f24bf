package worker

import "github.com/queuectl/queuectl/runner/wire"

// stuckNow notes what takes workers of a runner though its attempts have ended. The
// caller holds mu.
func (p *Pool) stuckNow(l *link, attempts []wire.Attempt) {
	if len(attempts) < len(l.stuck) {
		p.cfg.Log.Info("what outlived SIGKILL is gone; its worker is free", "left", len(attempts))
	}
	l.stuck = attempts
}

// taken is how many workers are taken by what outlives SIGKILL. The caller holds mu.
func (p *Pool) taken() (n int) {
	for _, l := range p.clients {
		n += len(l.stuck)
	}
	return n
}

// fit is how many of the wanted workers can run jobs. The caller holds mu.
func (p *Pool) fit() int { return max(0, p.target-p.taken()) }
