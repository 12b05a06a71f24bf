package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/connect"
	"github.com/queuectl/queuectl/internal/cli/enqueue"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/files"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// cancelWindow is how long after a first Ctrl-C a second Ctrl-C cancels the job. After this time, the
// program detaches from the job.
const cancelWindow = time.Second

func runVerb(a *App) *cobra.Command {
	var spec queue.Spec
	var noCwd, detach, cancelOnExit bool
	var private PrivateFlags
	cmd := &cobra.Command{
		Use:   "run ['COMMAND' | -- PROGRAM ARGS…]",
		Short: "Add a job to the queue, follow it, exit with its exit code",
		RunE: func(cmd *cobra.Command, args []string) error {
			if private.enabled {
				if a.Program.ServePrivate == nil {
					return a.execDaemon()
				}
				count, err := private.check(cmd.Flags(), args, cmd.ArgsLenAtDash())
				if err != nil {
					return err
				}
				return a.Program.RunPrivate(cmd.Context(), a, private, &spec, noCwd, count)
			}
			for _, name := range []string{"workers", "file", "lines", "arg-file", "null", "joblog", "retry-dead", "add-new"} {
				if cmd.Flags().Changed(name) {
					return fault.Usagef("--%s: works only with --private; add --private", name)
				}
			}
			if i := slices.Index(args, ":::"); i >= 0 {
				program := QuoteProgram(args[:i])
				return fault.Usagef("run takes one job; to run several in a separate queue: queuectl run --private -- %s ::: …; "+
					"to add them to this queue: queuectl enqueue -- %[1]s ::: …", program)
			}
			batch, err := input.ParseSpecArgs(a.Stdin, "run", &spec, args, cmd.ArgsLenAtDash())
			if err != nil {
				return err
			}
			if batch != nil {
				return fault.Usagef("run takes one job; add several with: queuectl enqueue")
			}
			if spec.MaxRetries == nil && spec.MaxAttempts == nil {
				spec.MaxRetries = new(int64)
			}
			if detach {
				return a.enqueueOne(cmd.Context(), &spec, noCwd, "")
			}
			return a.run(cmd.Context(), &spec, noCwd, cancelOnExit)
		},
	}
	input.AddSpecFlags(cmd, &spec)
	refusePast := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if private.enabled && files.Exists(filepath.Join(a.PrivateDir(), connect.RunManifestName)) {
			return nil // this run resumes an earlier run, so a time in its flags may have passed since then
		}
		return refusePast(cmd, args)
	}
	private.add(cmd.Flags())
	a.AddRequireLimitsFlag(cmd.Flags())
	cmd.Flags().BoolVar(&noCwd, "no-cwd", false, "run in your home directory, not in the current one")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "print the ID of the job and do not follow it")
	cmd.Flags().BoolVar(&cancelOnExit, "cancel-on-exit", false, "cancel the job when this command is interrupted")
	return cmd
}

// QuoteProgram returns a program and its arguments quoted for the shell, except words with
// replacement strings like {}.
func QuoteProgram(program []string) string {
	words := make([]string, len(program))
	for i, word := range program {
		if words[i] = word; len(input.SplitPlaceholders(word)) < 2 && !strings.HasPrefix(word, "{") {
			words[i] = queue.QuoteShellWord(word)
		}
	}
	return strings.Join(words, " ")
}

// run enqueues a job and follows it.
func (a *App) run(ctx context.Context, s *queue.Spec, noCwd, cancelOnExit bool) error {
	tty := s.TTY != nil && *s.TTY
	if a.joinsTTY(tty) && a.Program.JoinTerminal == nil {
		return a.execDaemon()
	}
	if err := input.CompleteAndCheck(s, noCwd); err != nil {
		return err
	}
	return a.WithStartedService(ctx, func(c *control.Client) error {
		interrupts := watchInterrupts()
		if s.OutputLimit == nil {
			s.OutputLimit = new(followedOutputBytes)
		}
		got, err := c.Enqueue(ctx, control.Enqueue{Spec: *s, RequireLimits: a.RequireLimits})
		if err != nil {
			return err
		}
		enqueue.PrintAnswer(&a.Output, a.Cmd, s, &got, true)
		return a.followOrDetach(ctx, c, &followedJob{id: got.ID, tty: tty, cancelOnExit: cancelOnExit}, interrupts)
	})
}

// followedOutputBytes is how many bytes of each output stream the service keeps for a job that the command
// run follows, unless the user sets a limit. With a lower limit, output would be lost if the job prints
// faster than run reads.
// See docs/decisions/0070.
const followedOutputBytes int64 = 64 << 20

// joinsTTY reports whether the command run connects the user's terminal to the job's terminal.
func (a *App) joinsTTY(tty bool) bool {
	return tty && !a.Structured() && term.IsTerminal(os.Stdin) && term.IsTerminal(a.Stdout)
}

// warnIfViewOnly reports whether the caller may not type into a job's terminal, and prints a message if so.
// The program then escapes control characters in the job's output, as for a job without a terminal.
func (a *App) warnIfViewOnly(ctx context.Context, c *control.Client, id string) bool {
	_, err := c.Attach(ctx, control.Attach{ID: control.JobID(id)})
	if !errors.Is(err, queue.ErrDenied) && !errors.Is(err, queue.ErrUnsupported) {
		return false // following the job reports any other error
	}
	a.sayViewOnly(err)
	return true
}

// sayViewOnly prints why the program does not send the user's input to the job.
func (a *App) sayViewOnly(err error) {
	a.Say("view only (your input is not sent to the job): %s", termtext.OneLine(a.EscapeFor(a.Stderr, err.Error())))
}

// followedJob is a job that this process follows to its end.
type followedJob struct {
	id             string
	tty            bool // the job has a terminal
	mayHaveStarted bool // the job existed before this process followed it, so it may already have started
	cancelOnExit   bool // cancel the job when the user interrupts this process
}

// watchInterrupts returns a channel that receives a value at each Ctrl-C.
func watchInterrupts() <-chan os.Signal {
	interrupts := make(chan os.Signal, 4)
	signal.Notify(interrupts, os.Interrupt)
	return interrupts
}

// followOrDetach follows a job until it ends or the user detaches, with Ctrl-C or with the keys of the
// joined terminal.
func (a *App) followOrDetach(ctx context.Context, c *control.Client, f *followedJob,
	interrupts <-chan os.Signal) error {
	if a.joinsTTY(f.tty) && !(f.mayHaveStarted && a.warnIfViewOnly(ctx, c, f.id)) {
		if a.Program.JoinTerminal == nil {
			return a.execDaemon()
		}
		return a.Program.JoinTerminal(a, ctx, c, f, interrupts)
	}
	follow, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	// This goroutine ends when the job ends or stop is called.
	go func() { done <- a.follow(follow, c, f, a.PrintOutput) }()
	select {
	case err := <-done:
		return err
	case <-interrupts:
	}
	if f.cancelOnExit || a.detachOrCancel(f.id, interrupts, done) {
		return a.cancelAndExit(c, f.id)
	}
	a.ExitCode = fault.ExitDetached
	return nil
}

func attachVerb(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "attach ID", Short: "Follow a job or join its terminal; exit with its exit code",
		Args: ExactArgs(1, "the id of a job"), ValidArgsFunction: a.CompleteIDs("processing", "waiting"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.WithClient(func(c *control.Client) error {
				job, err := c.Show(cmd.Context(), control.Show{ID: control.JobID(args[0])})
				if err != nil {
					return err
				}
				tty, _ := job.Spec["tty"].(bool)
				return a.followOrDetach(cmd.Context(), c, &followedJob{id: job.ID, tty: tty, mayHaveStarted: true},
					watchInterrupts())
			})
		},
	}
}

// continuesText returns the message that a job continues to run, with the command that follows the job
// again.
func continuesText(id string) string {
	return fmt.Sprintf("queuectl: job %s continues; return to it with: queuectl attach %s", id, id)
}

// detachOrCancel prints how to attach to the job again. It reports whether a second Ctrl-C follows
// within cancelWindow, which cancels the job.
func (a *App) detachOrCancel(id string, interrupts <-chan os.Signal, done <-chan error) bool {
	fmt.Fprintf(a.Stderr, "\n%s; press Ctrl-C again to cancel it\n", continuesText(id))
	select {
	case <-interrupts:
		return true
	case <-done:
		return false
	case <-time.After(cancelWindow):
		return false
	}
}

func (a *App) cancelAndExit(c *control.Client, id string) error {
	a.ExitCode = fault.ExitDetached
	// Use a new connection. On the old one, the answer would follow job output that this process no longer
	// reads.
	c = c.Clone()
	defer c.Close()
	verdict, err := c.Cancel(context.Background(), control.Selection{IDs: []string{id}})
	if err != nil {
		return err
	}
	if len(verdict.Refusals) > 0 {
		a.Say("%s", verdict.Refusals[0].Err())
		return nil
	}
	a.Say("job %s cancelled", id)
	return nil
}
