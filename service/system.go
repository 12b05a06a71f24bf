package service

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/systemd"
	"github.com/queuectl/queuectl/queue"
)

// standing is how the queue stands, in a line.
func (s *Service) standing() string {
	c := s.store.Counts()
	line := fmt.Sprintf("%d running · %d waiting · %d dead · %d workers", s.pool.Busy(), c.Waiting(), c.States[queue.Dead], s.pool.Workers())
	if s.pool.Draining() {
		line += "; draining"
	}
	if s.pool.Frozen() {
		line += "; paused"
	}
	return line
}

// statusEvery is the least time between two lines for systemctl status.
const statusEvery = time.Second

// tellSystem tells the system that the service is ready, and then how the queue stands,
// whenever that changes. An idle service wakes for nothing.
func (s *Service) tellSystem(ctx context.Context) {
	told := ""
	for first := true; ; first = false {
		_, changed := s.store.LastEvent()
		if now := s.standing(); now != told {
			told = now
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
		case <-time.After(statusEvery): // one end brings many changes
		}
	}
}

// reloading reads the settings again and tells the system of it.
func (s *Service) reloading(ctx context.Context) (later string, err error) {
	systemd.Notify("RELOADING=1", systemd.Monotonic(monotonic()))
	later, err = s.reload(ctx)
	s.owners.again()
	systemd.Notify("READY=1", "STATUS="+s.standing())
	return later, err
}

// feedWatchdog tells the system that the service lives, as long as it does: when a
// change has reached the disk and a request was answered. Whoever waits long for the
// disk lives, as long as it comes back before the watchdog's time is over.
func (s *Service) feedWatchdog(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := s.alive(ctx); err == nil {
			systemd.Notify("WATCHDOG=1")
		} else if ctx.Err() == nil {
			s.log.Error("the service could not check itself, so it did not notify the systemd watchdog", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// alive makes a commit and has a request answered. Who says that the disk is full lives,
// and who refuses one connection more: to be ended would help nobody, and keep it from
// answering.
// See docs/decisions/0080.
func (s *Service) alive(ctx context.Context) error {
	if _, err := s.store.NextEpoch(ctx); err != nil && !errors.Is(err, queue.ErrNoSpace) { // any change would do: nobody has met a runner with it
		return fmt.Errorf("commit: %w", err)
	}
	c, err := control.Dial(ctx, s.opt.Places.Socket)
	if s.inherits && errors.Is(err, fs.ErrNotExist) {
		return nil // nobody can ask, nor could they of the next service: it would have the same socket
	}
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	fmt.Fprintln(c, `{"jsonrpc":"2.0","id":1,"method":"hello"}`) // one that is refused may be told so before
	if _, err := bufio.NewReader(c).ReadString('\n'); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	return nil
}
