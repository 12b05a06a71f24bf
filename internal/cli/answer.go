package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// errOther means that queuectld has executed the command, so this program has nothing left to do.
var errOther = errors.New("queuectld has executed the command")

// execDaemon executes queuectld with the same arguments instead of this program.
func (a *App) execDaemon() (err error) {
	a.Exit, err = a.Finder.Exec()
	return err
}

// Reader returns a client for a command that only reads. If --dir names the directory of a private run
// and no service runs there, the client reads the queue's files.
func (a *App) Reader(ctx context.Context) (*control.Client, error) {
	if a.offline != nil {
		return a.offline, nil
	}
	c, t, err := a.Connect(ctx)
	if c == nil {
		return nil, err
	}
	dir, private := a.PrivateRunDir()
	if !errors.Is(err, control.ErrUnreachable) || errors.Is(err, os.ErrPermission) || !private {
		return c, t.ConnectError(err)
	}
	if a.Program.Offline == nil {
		return nil, cmp.Or(a.execDaemon(), errOther)
	}
	opened, failed := a.Program.Offline(ctx, a, dir)
	if errors.Is(failed, os.ErrNotExist) {
		return c, t.ConnectError(err)
	}
	if failed != nil {
		return nil, failed
	}
	fmt.Fprintf(a.Stderr, "queuectl: no service is running for the queue in %s; reading its files\n", dir)
	a.Forget()
	a.offline = opened
	return opened, nil
}

// ReaderUnless returns a client as Reader does. If the parameter waits is true, the command waits for
// future events, so ReaderUnless requires a running service.
func (a *App) ReaderUnless(ctx context.Context, waits bool) (*control.Client, error) {
	if waits {
		return a.Client()
	}
	return a.Reader(ctx)
}

// Answer calls a method of the chosen service and prints the reply: as JSON if the user asked for JSON,
// otherwise with the function print.
func Answer[P, R any](ctx context.Context, a *App, method func(*control.Client, context.Context, P) (R, error), p P,
	print func(R) error) error {
	c, err := a.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	return AnswerOf(ctx, a, c, method, p, print)
}

// ReadingClient returns a client for a command that only lists things. If there is no queue, the
// command says so and succeeds.
func (a *App) ReadingClient(ctx context.Context) (*control.Client, error) {
	a.MissingIsEmpty = true
	return a.Reader(ctx)
}

// ReadAnswer calls a method and prints the reply, like Answer. It is for commands that only read. Such
// commands can also read the directory of a private run that has no running service.
func ReadAnswer[P, R any](ctx context.Context, a *App, method func(*control.Client, context.Context, P) (R, error), p P,
	print func(R) error) error {
	c, err := a.ReadingClient(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return AnswerOf(ctx, a, c, method, p, print)
}

// AnswerOf is like Answer, but uses a client that is already connected.
func AnswerOf[P, R any](ctx context.Context, a *App, c *control.Client,
	method func(*control.Client, context.Context, P) (R, error), p P, print func(R) error) error {
	got, err := method(c, ctx, p)
	switch {
	case err != nil:
		return err
	case a.Structured():
		return a.PrintJSON(got)
	}
	return print(got)
}

// errNothingToCheck is the error of a health check when no queue exists. A command that lists things
// succeeds in that case, but a health check must fail.
var errNothingToCheck = &queue.Error{Code: queue.CodeUnavailable,
	Message: "there is no queue yet, so there is nothing to check; your first job creates it: queuectl enqueue 'echo " +
		"hello' (or run: queuectl service start)"}
