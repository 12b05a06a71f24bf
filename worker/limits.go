package worker

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// Limits returns how the runner for new jobs enforces limits. It waits until such a runner is
// connected; ok is false if ctx ends first.
func (p *Pool) Limits(ctx context.Context) (list []queue.Enforcement, ok bool) {
	for {
		p.mu.Lock()
		conn, connected := p.runners.currentLocked(), p.runners.connectSignal
		p.mu.Unlock()
		if conn != nil {
			for _, l := range conn.Reply.Limits {
				list = append(list, queue.Enforcement{Limit: l.Name, Extent: queue.Extent(l.Extent), Mechanism: l.Mechanism})
			}
			return list, true
		}
		select {
		case <-connected:
		case <-ctx.Done():
			return nil, false
		}
	}
}
