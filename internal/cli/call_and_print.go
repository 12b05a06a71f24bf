package cli

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"os"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/queue"
)

// errExecutedQueuectld means that queuectld has executed the command, so this program has nothing left to do.
var errExecutedQueuectld = errors.New("queuectld has executed the command")

// execQueuectld executes queuectld instead of this program, with the same arguments.
func (a *App) execQueuectld() (err error) {
	a.ExitCode, err = a.ServiceFinder.ExecQueuectld()
	return err
}

// ReadOnlyClient returns a client for a command that only reads. The client sends its requests to the chosen service.
// There is one exception: if that service does not run and --dir is the directory of a private run ("queuectl run
// --private"), the client reads the files of the queue itself.
func (a *App) ReadOnlyClient(ctx context.Context) (*control.Client, error) {
	if a.offlineClient != nil {
		return a.offlineClient, nil
	}
	c, t, err := a.Connect(ctx)
	dir, private := a.PrivateRunDir()
	if !errors.Is(err, control.ErrUnreachable) || errors.Is(err, os.ErrPermission) || !private {
		return c, t.ExplainConnectError(err)
	}
	if a.Program.OpenOffline == nil {
		return nil, cmp.Or(a.execQueuectld(), errExecutedQueuectld)
	}
	opened, failed := a.Program.OpenOffline(ctx, a, dir)
	if errors.Is(failed, os.ErrNotExist) {
		return c, t.ExplainConnectError(err)
	}
	if failed != nil {
		return nil, failed
	}
	a.PrintMessage("no service is running for the queue in %s; reading its files", dir)
	a.ForgetClient()
	a.offlineClient = opened
	return opened, nil
}

// WithClient calls action(c) with a client of the chosen service, and then closes the client.
func (a *App) WithClient(action func(*control.Client) error) error {
	c, err := a.Client()
	return callAndCloseClient(c, err, action)
}

// WithStartedService is like WithClient, except that it first starts the chosen service if that service is the user's
// own and does not run.
func (a *App) WithStartedService(ctx context.Context, action func(*control.Client) error) error {
	c, err := a.ClientWithAutostart(ctx)
	return callAndCloseClient(c, err, action)
}

// WithReadOnlyClient is like WithClient, but with the client that ReadOnlyClient returns. If waitsForEvents is true, it
// is the same as WithClient, because only a running service can send events when they happen.
func (a *App) WithReadOnlyClient(ctx context.Context, waitsForEvents bool, action func(*control.Client) error) error {
	if waitsForEvents {
		return a.WithClient(action)
	}
	c, err := a.ReadOnlyClient(ctx)
	return callAndCloseClient(c, err, action)
}

// callAndCloseClient calls action(c) and then closes c. c and err are the results of the function that created the
// client. If err is not nil, callAndCloseClient returns err without calling action.
func callAndCloseClient(c *control.Client, err error, action func(*control.Client) error) error {
	if err != nil {
		return err
	}
	defer c.Close()
	return action(c)
}

// ShowJob returns the details of a job.
func ShowJob(ctx context.Context, c *control.Client, id string) (control.JobDetail, error) {
	return c.ShowJob(ctx, control.JobShowParams{ID: control.JobID(id)})
}

// JobPages yields the pages of a list of jobs one by one. After an error it yields the error and ends.
func JobPages(ctx context.Context, c *control.Client, p control.JobListParams) iter.Seq2[control.JobPage, error] {
	return func(yield func(control.JobPage, error) bool) {
		for {
			page, err := c.ListJobs(ctx, p)
			if !yield(page, err) || err != nil || page.NextCursor == nil {
				return
			}
			p.Cursor = *page.NextCursor
		}
	}
}

// ClientMethod is a method of the client that sends one request.
type ClientMethod[P, R any] = func(*control.Client, context.Context, P) (R, error)

// CallAndPrint calls a method of the chosen service. It prints the reply as JSON if the user asked for JSON, and
// otherwise calls printReply.
func CallAndPrint[P, R any](ctx context.Context, a *App, method ClientMethod[P, R], p P,
	printReply func(R) error) error {
	return a.WithClient(func(c *control.Client) error { return CallClientAndPrint(ctx, a, c, method, p, printReply) })
}

// RequestVerb returns a command without arguments. The command sends one request with the parameters *p,
// which flags may set, and prints the reply.
func RequestVerb[P, R any](
	a *App, use, short string, method ClientMethod[P, R], p *P, printReply func(R) error,
) *cobra.Command {
	return NewCommand(use, short, NoArgs, func(ctx context.Context, _ []string) error {
		return CallAndPrint(ctx, a, method, *p, printReply)
	})
}

// NamedRequestVerb is like RequestVerb, but the command takes one argument, which it stores in *name. argDescription
// describes the argument in errors, for example "the name of a node".
func NamedRequestVerb[P, R any](a *App, use, short, argDescription string, name *string, method ClientMethod[P, R],
	p *P,
	printReply func(R) error) *cobra.Command {
	cmd := RequestVerb(a, use, short, method, p, printReply)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			*name = args[0]
		}
		return checkArgCount(cmd, args, 1, argDescription)
	}
	return cmd
}

// ListVerb builds a command that prints a table of all objects of one kind, such as nodes. If there are no objects, the
// command prints emptyText. If worksOffline is true, the command can also read the files of a private run ("queuectl
// run --private") whose service does not run.
//
// readPage returns one page of the objects. It also returns the cursor of the next page, or "" after the last
// page.
func ListVerb[T any](a *App, short, emptyText string, headings []string, worksOffline bool,
	readPage func(ctx context.Context, c *control.Client, cursor string) (list []T, nextCursor string, err error),
	makeRow func(*T) []string) *cobra.Command {
	return NewCommand("list", short, NoArgs, func(ctx context.Context, _ []string) error {
		a.MissingQueueIsEmpty = true
		return a.WithReadOnlyClient(ctx, !worksOffline, func(c *control.Client) error {
			var list []T
			for cursor, more := "", true; more; more = cursor != "" {
				var objects []T
				var err error
				if objects, cursor, err = readPage(ctx, c, cursor); err != nil {
					return err
				}
				list = append(list, objects...)
			}
			return term.PrintTable(&a.Output, list, emptyText, headings, makeRow)
		})
	})
}

// ReadAndPrint is like CallAndPrint, for a command that only reads. Such a command can also read the files of a private
// run ("queuectl run --private") whose service does not run.
func ReadAndPrint[P, R any](ctx context.Context, a *App, method ClientMethod[P, R], p P,
	printReply func(R) error) error {
	return a.WithReadOnlyClient(ctx, false, func(c *control.Client) error {
		return CallClientAndPrint(ctx, a, c, method, p, printReply)
	})
}

// CallClientAndPrint is like CallAndPrint, but uses a client that is already connected.
func CallClientAndPrint[P, R any](ctx context.Context, a *App, c *control.Client, method ClientMethod[P, R], p P,
	printReply func(R) error) error {
	got, err := method(c, ctx, p)
	switch {
	case err != nil:
		return err
	case a.WantsJSON():
		return a.PrintJSON(got)
	}
	return printReply(got)
}

// errHealthWithoutQueue is the error of a health check if no queue exists. Commands that list jobs print an empty
// list in that case, but a health check must fail.
var errHealthWithoutQueue = &queue.Error{Code: queue.CodeUnavailable,
	Message: "there is no queue yet, so there is nothing to check; your first job creates it: queuectl enqueue 'echo " +
		"hello' (or run: queuectl service start)"}
