package connect

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
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/logs"
	"github.com/queuectl/queuectl/internal/osservice"
	"github.com/queuectl/queuectl/queue"
)

// This file starts the user's own service when a client needs it. If two clients start it at the same time, two
// processes of the service start. One process gets the lock of the state directory. The other process exits with the
// code exitCodeDirInUse, and its client waits until the first process accepts connections.

const (
	autostartTimeout = 15 * time.Second // how long to wait for a service that was started automatically
	// otherClientsStartTimeout is how long to wait for a service that another client is starting at the same time.
	otherClientsStartTimeout = 2 * time.Second
)

// ClientWithAutostart returns a client of the chosen service. If the service is the user's own and does
// not run, ClientWithAutostart starts it in the background.
func (f *ServiceFinder) ClientWithAutostart(ctx context.Context) (*control.Client, error) {
	c, t, err := f.Connect(ctx)
	if !errors.Is(err, control.ErrUnreachable) || !t.IsUserService {
		return c, t.ExplainConnectError(err)
	}
	// The operating system starts a registered service. If a registered service does not run, the user has stopped it, so
	// do not start it here.
	if _, registered := osservice.FindUserService(); registered {
		return c, t.ExplainConnectError(err)
	}
	if os.Getenv("QUEUECTL_NO_START") == "1" {
		if errors.Is(err, os.ErrPermission) {
			return c, err
		}
		return c, queue.Errorf(queue.CodeUnavailable,
			"no service is running, and QUEUECTL_NO_START=1 prevents an automatic start; start it with: %s", t.StartCommand)
	}
	return c, f.StartServiceAndWait(ctx, c, t)
}

// StartServiceAndWait starts the service t in the background and waits until the client c can connect to it. t must be
// a service that CanStart accepts.
func (f *ServiceFinder) StartServiceAndWait(ctx context.Context, c *control.Client, t Target) error {
	b, err := startService(t)
	if err != nil {
		return f.serviceStartError(fault.ExitCode(err), fmt.Errorf("the service did not start: %w", err))
	}
	for began := time.Now(); ; {
		over := false
		select {
		case <-b.done:
			over = true
		default:
		}
		err := c.Connect(ctx)
		switch waited := time.Since(began); {
		case err == nil && !over:
			f.messageOutput.PrintMessage("started a service in the background; its log is %s", b.logPath)
			return nil
		case !errors.Is(err, control.ErrUnreachable): // a service answers, but it refuses the connection
			return err
		case over && (b.exitCode != exitCodeDirInUse || waited > otherClientsStartTimeout):
			return f.serviceStartError(b.exitCode, b.lastLogError())
		case waited > autostartTimeout:
			return queue.Errorf(queue.CodeUnavailable,
				"a service was started in the background but does not answer, so nothing was sent; see its log: %s", b.logPath)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// exitCodeDirInUse is the exit code of a service whose directory another service already uses.
var exitCodeDirInUse = control.ErrorCodeInfoOf(queue.ErrWrongState).ExitStatus

// serviceStartError returns the error about a service that did not start. exitCode is the exit code of the service. If
// it is above 2, this process exits with the same code. Codes up to 2 say nothing about the cause; for example, 2 can
// mean a crash.
//
// If FailureExitCode is set, this process exits with FailureExitCode after every failure, whatever exitCode is.
func (f *ServiceFinder) serviceStartError(exitCode int, err error) error {
	if exitCode > 2 && f.FailureExitCode == 0 {
		return fault.WithExitCode(err, exitCode)
	}
	return queue.Errorf(queue.CodeUnavailable, "%v", err)
}

// startedService is a service that this process started in the background.
type startedService struct {
	logPath         string
	initialLogBytes int64 // size of the log before the start of the service
	cmd             *exec.Cmd
	done            chan struct{} // closed when the service has ended
	exitCode        int           // valid once done is closed; negative if a signal ended the service
}

// startService starts a service in the background. It redirects the service's standard error to the service's log,
// because the service may print messages before it opens the log.
func startService(t Target) (*startedService, error) {
	program, err := DaemonPath()
	if err != nil {
		return nil, err
	}
	state := ""
	if t.ServeFlags != nil {
		state = t.ServeFlags[1]
	} else {
		p, err := config.UserPaths()
		if err = cmp.Or(err, p.CheckHomeOwner()); err != nil {
			return nil, err
		}
		state = p.StateDir
	}
	log, err := logs.OpenServiceLog(filepath.Join(state, config.LogFileName))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return nil, err
	}
	b := &startedService{logPath: log.Name(), initialLogBytes: info.Size(), done: make(chan struct{})}
	if b.cmd, err = startDetached(log, program, append([]string{"serve", "--background"},
		t.ServeFlags...)...); err != nil {
		return nil, explainExecError(program, err)
	}
	go func() { // this goroutine ends when the service ends, or with this process
		b.cmd.Wait()
		b.exitCode = b.cmd.ProcessState.ExitCode()
		close(b.done)
	}()
	return b, nil
}

// lastLogError returns the last error that the service has added to its log, which says why the service has
// ended. The service rotates its log, so the text of the log fits in memory.
func (s *startedService) lastLogError() error {
	raw, err := os.ReadFile(s.logPath) // ignore the error: without the log, lastLogError returns only the name of the log
	// If the log is shorter than at the start, it was rotated, and all of its text is new.
	if err == nil && int64(len(raw)) >= s.initialLogBytes {
		raw = raw[s.initialLogBytes:]
	}
	message := ""
	for line := range strings.Lines(string(raw)) {
		if text, isOurs := strings.CutPrefix(strings.TrimSpace(line), "queuectl: "); isOurs {
			message = text
		}
	}
	if message == "" {
		return fmt.Errorf("the service exited immediately (%v); see its log: %s", s.cmd.ProcessState, s.logPath)
	}
	return fmt.Errorf("the service did not start (its log is %s): %s", s.logPath, message)
}
