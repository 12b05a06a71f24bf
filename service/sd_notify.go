package service

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/internal/systemd"
	"github.com/queuectl/queuectl/queue"
)

// queueStatusLine returns a summary of the queue in one line.
func (s *Service) queueStatusLine() string {
	c := s.Store.Counts()
	line := fmt.Sprintf("%d running · %d waiting · %d dead · %d workers", s.Pool.BusyWorkerCount(), c.WaitingJobs(),
		c.JobsByState[queue.Dead], s.Pool.WantedWorkerCount())
	if s.Pool.IsDraining() {
		line += "; draining"
	}
	if s.Pool.AreAllJobsPaused() {
		line += "; paused"
	}
	return line
}

// minStatusInterval is the minimum interval between two status lines that the service sends to systemd.
const minStatusInterval = time.Second

// notifySystemd notifies systemd that the service is ready, and sends a new status line whenever the queue has changed.
// While the queue does not change, notifySystemd only waits, so that an idle service causes no wake-ups.
func (s *Service) notifySystemd(ctx context.Context) {
	sent := ""
	for first := true; ; first = false {
		_, changed := s.Store.LastEventSeq()
		if now := s.queueStatusLine(); now != sent {
			sent = now
			lines := []string{"STATUS=" + now}
			if first {
				lines = append(lines, "READY=1")
			}
			systemd.Notify(lines...)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(minStatusInterval): // wait, because the end of one job causes several changes
		}
	}
}

// notifyReloading notifies systemd that the service reads its settings again.
func (s *Service) notifyReloading() {
	systemd.Notify("RELOADING=1", systemd.MonotonicUsecLine(monotonicTime()))
}

// notifyReloaded notifies systemd that the service has read its settings again.
func (s *Service) notifyReloaded() { systemd.Notify("READY=1", "STATUS="+s.queueStatusLine()) }

// notifySystemdWatchdog notifies the systemd watchdog each time selfCheck succeeds. A slow disk may delay selfCheck.
// The delay is harmless if selfCheck still succeeds within the watchdog's timeout.
func (s *Service) notifySystemdWatchdog(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := s.selfCheck(ctx); err == nil {
			systemd.Notify("WATCHDOG=1")
		} else if ctx.Err() == nil {
			s.Log.Error("the service failed its self-check, so it did not notify the systemd watchdog; if this lasts, "+
				"systemd restarts the service", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// selfCheck checks that the service can commit a change and that its socket answers. It ignores a full disk
// and a rejected connection, because restarting the service would not help. See docs/decisions/0080.
func (s *Service) selfCheck(ctx context.Context) error {
	// Commit any change to the database. A new epoch (the number of a service start) is harmless, because no runner gets
	// this epoch.
	if _, err := s.Store.AdvanceEpoch(ctx); err != nil && !errors.Is(err, queue.ErrNoSpace) {
		return fmt.Errorf("cannot commit a change to the database: %w", err)
	}
	c, err := socket.Dial(ctx, s.Paths.SocketPath)
	if s.SocketInherited && errors.Is(err, fs.ErrNotExist) {
		// Ignore this error: a restarted service would get the same socket from its parent, so a restart
		// would not help.
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot get a reply on the service's socket: %w", err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	// Ignore the error: the service may close a rejected connection before this write. Only the reply
	// matters.
	fmt.Fprintln(c, `{"jsonrpc":"2.0","id":1,"method":"hello"}`)
	if _, err := bufio.NewReader(c).ReadString('\n'); err != nil {
		return fmt.Errorf("cannot get a reply on the service's socket: %w", err)
	}
	return nil
}
