package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/logs"
	"github.com/queuectl/queuectl/internal/registered"
	"github.com/queuectl/queuectl/queue"
)

const (
	startWithin   = 15 * time.Second // a service that is started by the way answers
	quickerWithin = 2 * time.Second  // another one does, to which ours has given way
)

// clientStarting speaks to the chosen service, and starts it in the background
// where that is the user's own and does not run.
func (a *App) clientStarting(ctx context.Context) (*control.Client, error) {
	c, t, err := a.connect(ctx)
	if c == nil {
		return nil, err
	}
	if !errors.Is(err, control.ErrUnreachable) || !t.Own {
		return c, a.Reached(err, t)
	}
	if _, registered := registered.Own(); registered { // then it was stopped on purpose
		return c, a.Reached(err, t)
	}
	if os.Getenv("QUEUECTL_NO_START") == "1" {
		if errors.Is(err, os.ErrPermission) {
			return c, err
		}
		return c, queue.Errorf(queue.CodeUnavailable, "no service is running, and QUEUECTL_NO_START=1 prevents an automatic start; start it with: %s", t.Start)
	}
	return c, a.StartAndReach(ctx, c, t)
}

// StartAndReach starts a service in the background, which is the user's own or one of a folder
// that is known, and returns once it answers c.
func (a *App) StartAndReach(ctx context.Context, c *control.Client, t Target) error {
	b, err := startService(t)
	if err != nil {
		return a.notStarted(ExitCode(err), fmt.Errorf("cannot start the service: %w", err))
	}
	for began := time.Now(); ; {
		over := b.over()
		err := c.Connect(ctx)
		switch waited := time.Since(began); {
		case err == nil && !over:
			fmt.Fprintf(a.Err, "queuectl: started a service in the background; its log is %s\n", b.log)
			return nil
		case !errors.Is(err, control.ErrUnreachable): // another one was quicker, or refuses
			return err
		case over && (b.code != gaveWay || waited > quickerWithin):
			return a.notStarted(b.code, b.failure())
		case waited > startWithin:
			return queue.Errorf(queue.CodeUnavailable, "a service was started in the background but does not answer; see its log: %s", b.log)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// gaveWay is the exit code of a service whose folder another one has.
var gaveWay = control.RowOf(queue.ErrWrongState).Exit

// notStarted is an error with the exit code of the service, where that says more than
// that none answers: 2 is a crash. Whoever exits as a job does has one code for all such.
func (a *App) notStarted(code int, err error) error {
	if code > 2 && a.ownFailure == 0 {
		return &endError{err, code}
	}
	return queue.Errorf(queue.CodeUnavailable, "%v", err)
}

// endError is an error with its exit code.
type endError struct {
	error
	code int
}

// Unwrap is the cause.
func (e *endError) Unwrap() error { return e.error }

// ExitsWith is the exit code.
func (e *endError) ExitsWith() int { return e.code }

// background is a service that was started by the way.
type background struct {
	log   string
	from  int64 // where its part of the log begins
	cmd   *exec.Cmd
	ended chan struct{} // closed once it has
	code  int           // then; below 0 if a signal ended it
}

// startService starts a service in the background. What it says before it has opened its log
// stands there too.
func startService(t Target) (*background, error) {
	program, err := DaemonPath()
	if err != nil {
		return nil, err
	}
	state := ""
	if t.Serve != nil {
		state = t.Serve[1]
	} else {
		p, err := config.User()
		if err = cmp.Or(err, p.CheckOwner()); err != nil {
			return nil, err
		}
		state = p.State
	}
	log, err := logs.Open(filepath.Join(state, config.LogName))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return nil, err
	}
	b := &background{log: log.Name(), from: info.Size(), ended: make(chan struct{})}
	if b.cmd, err = startDetached(log, program, append([]string{"serve", "--background"}, t.Serve...)...); err != nil {
		return nil, notStartedBy(program, err)
	}
	go func() { // ends with the service, or this process
		b.cmd.Wait()
		b.code = b.cmd.ProcessState.ExitCode()
		close(b.ended)
	}()
	return b, nil
}

// over reports whether it has ended.
func (b *background) over() bool {
	select {
	case <-b.ended:
		return true
	default:
		return false
	}
}

// failure is why it has ended, by the last error in its log.
func (b *background) failure() error {
	said := ""
	for line := range strings.Lines(b.words()) {
		if text, own := strings.CutPrefix(strings.TrimSpace(line), "queuectl: "); own {
			said = text
		}
	}
	if said == "" {
		return fmt.Errorf("the service exited immediately (%v); see its log: %s", b.cmd.ProcessState, b.log)
	}
	return fmt.Errorf("the service did not start (its log is %s): %s", b.log, said)
}

// words is what the log, which is put aside before it is long, says since the service was
// started; "" if it cannot be read.
func (b *background) words() string {
	raw, err := os.ReadFile(b.log)
	if err == nil && int64(len(raw)) >= b.from { // else it was put aside
		raw = raw[b.from:]
	}
	return string(raw)
}
