package worker

import (
	"context"
	"path/filepath"
	"time"

	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// SetLeaseDeadline sets when the leases of this pool (its right to run the claimed jobs) lapse. After that time, other
// nodes may run the jobs. Therefore the runners end all jobs that still run at that time, even if this process is dead.
// The zero time means never. If the leases can lapse, the caller must call SetLeaseDeadline before Run, and call it
// again with a later time before they lapse. Without a call, the leases never lapse.
func (p *Pool) SetLeaseDeadline(leaseDeadline time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if leaseDeadline.IsZero() && p.leaseDeadline.isNever() {
		return
	}
	p.leaseDeadline = deadline{leaseDeadline}
	for _, conn := range p.runners.conns {
		p.sendLeaseDeadlineLocked(conn)
	}
}

// sendLeaseDeadlineLocked sends a runner the time at which the leases lapse. If they never lapse, it sends
// zero values, because the runner may still have the deadline of an earlier service.
func (p *Pool) sendLeaseDeadlineLocked(conn *runnerConn) {
	f := &wire.ExtendLeases{} // zero values mean that the leases never lapse
	if !p.leaseDeadline.isNever() {
		f.Duration = max(time.Nanosecond, time.Until(p.leaseDeadline.time))
		// Send an absolute time in addition to the duration, because the frame (message) may arrive late.
		f.ExpiryBootMillis = (runner.TimeSinceBoot() + f.Duration).Milliseconds()
	}
	conn.Send(f)
}

// endOrphanProcesses ends the processes that the runner in runnerDir left behind, if the runner is dead and the leases
// can lapse. Run also ends these processes when it recovers the runner's jobs. But Run may first have to wait for the
// store, and the leases may lapse in the meantime. A living runner ends its jobs itself.
func (p *Pool) endOrphanProcesses(ctx context.Context, runnerDir string) {
	if readWithLock(p, &p.leaseDeadline).isNever() {
		return
	}
	// Retry for a while: the lock of a dead runner may be released later than its connection.
	for wait := minContactRetryDelay; wait <= maxContactRetryDelay; wait *= 2 {
		recoverer, err := p.recovererForDir(filepath.Dir(runnerDir))
		if alive, unknown := runner.IsAlive(runnerDir); !alive && unknown == nil && err == nil {
			if recoverer != nil || !p.cfg.RunnerLocation.HasExternalRunnersDir() {
				// Ignore errors: Run recovers the runner's jobs later and handles the errors then.
				p.recoverWithRunner(ctx, recoverer, runnerDir, nil, nil)
			}
			return
		}
		if !sleepUnlessDone(ctx, wait) {
			return
		}
	}
}
