package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

func enqueueVerb(a *App) *cobra.Command {
	var spec queue.Spec
	var file, key string
	var noCwd bool
	cmd := &cobra.Command{
		Use:   "enqueue ['shell line' | '{json}' | -- program args…]",
		Short: "Put a job in the queue",
		Long: `Put a job in the queue and print its id.

  queuectl enqueue 'make all >log'          a line for the shell
  queuectl enqueue -- convert a.png b.jpg   a program, without a shell
  queuectl enqueue '{"command":"make"}'     the fields as JSON
  queuectl enqueue --id x --command 'make'  the fields as flags
  queuectl enqueue --at 3am ./backup.sh     not before three at night
  queuectl enqueue --file jobs.jsonl        many jobs, all or none; - is stdin`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if file != "" {
				if len(args) > 0 || spec.Command != nil {
					return Usage("--file and a command are both given; give one of them")
				}
				return a.enqueueFile(ctx, file, &spec, noCwd, key)
			}
			batch, err := a.readWords("enqueue", &spec, args, cmd.ArgsLenAtDash())
			if err != nil {
				return err
			}
			if batch != nil {
				return a.enqueueBatch(ctx, batch, noCwd, key)
			}
			return a.enqueueOne(ctx, &spec, noCwd, key)
		},
	}
	specFlags(cmd, &spec)
	cmd.Flags().Var(NonEmpty(&file), "file", "`FILE` of jobs, a JSON array or JSON lines; - is stdin")
	cmd.Flags().Var(NonEmpty(&key), "key", "makes the request repeatable: the same key gets the same answer")
	cmd.Flags().BoolVar(&noCwd, "no-cwd", false, "run in the home folder, not in this one")
	return cmd
}

// readWords puts the words of a command line into a spec. A JSON array gives a
// batch.
func (a *App) readWords(verb string, s *queue.Spec, args []string, dash int) ([]queue.Spec, error) {
	given := len(s.Given()) > 0
	if s.Stdin != nil && *s.Stdin == "-" {
		text, err := readStdin(a.in)
		if err != nil {
			return nil, err
		}
		s.Stdin = &text
	}
	switch {
	case dash == 0 && len(args) > 0:
		s.Argv = args
	case dash > 0:
		return nil, Usage("words stand before --; put the whole program behind it: queuectl %s -- %s", verb, strings.Join(args, " "))
	case len(args) > 1:
		return nil, Usage("%d words are given; quote them as one line for the shell: queuectl %s '%s', or run them without one: queuectl %s -- %s", len(args), verb, strings.Join(args, " "), verb, strings.Join(args, " "))
	case len(args) == 1 && strings.HasPrefix(strings.TrimSpace(args[0]), "["):
		if given {
			return nil, Usage("an array of jobs takes no flags of jobs; put the fields into its objects")
		}
		return parseArray([]byte(args[0]))
	case len(args) == 1 && strings.HasPrefix(strings.TrimSpace(args[0]), "{"):
		return nil, mergeJSON(s, args[0])
	case len(args) == 1 && s.Command != nil:
		return nil, Usage("a command is given twice, as a flag and as a word; give one of them")
	case len(args) == 1:
		s.Command = &args[0]
	}
	return nil, nil
}

// mergeJSON reads a spec from JSON; flags that were given hold over it.
func mergeJSON(flags *queue.Spec, text string) error {
	if err := queue.CheckJSON([]byte(text)); err != nil {
		return Usage("%v; to run a shell line that begins with { use --command", err)
	}
	var s queue.Spec
	if err := s.Decode([]byte(text), nil); err != nil {
		return err
	}
	s.Over(flags)
	*flags = s
	return nil
}

func readStdin(in io.Reader) (string, error) {
	raw, err := io.ReadAll(io.LimitReader(in, queue.MaxStdin+1))
	if err != nil {
		return "", fmt.Errorf("read standard input: %w", err)
	}
	if len(raw) > queue.MaxStdin {
		return "", queue.Invalid("stdin", "is longer than %d bytes; have the job read a file", queue.MaxStdin)
	}
	return string(raw), nil
}

func (a *App) enqueueOne(ctx context.Context, s *queue.Spec, noCwd bool, key string) error {
	if err := prepare(s, noCwd); err != nil {
		return err // before a service is started for it
	}
	c, err := a.clientStarting(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	got, err := c.Enqueue(ctx, control.Enqueue{Spec: *s, Key: key})
	if err != nil {
		return err
	}
	if a.Structured() {
		job, err := c.Show(ctx, control.Show{ID: control.Name(got.ID)})
		if err != nil {
			return err
		}
		return a.PrintJSON(job)
	}
	if err := a.Println(got.ID); err != nil {
		return err
	}
	if got.Duplicate {
		a.Say("job %s was enqueued with this key before", got.ID)
		return nil
	}
	a.Say("job %s enqueued%s", got.ID, whenDue(s, time.Now()))
	return nil
}

// whenDue is when a new job is due, if that was asked for: "; due …".
func whenDue(s *queue.Spec, now time.Time) string {
	switch {
	case s.RunAt != nil:
		return "; " + dueText(s.RunAt.Time(), now)
	case s.Delay != nil:
		return "; " + dueText(now.Add(*s.Delay), now)
	}
	return ""
}

// enqueueFile puts all jobs of a file in the queue, or none.
func (a *App) enqueueFile(ctx context.Context, name string, flags *queue.Spec, noCwd bool, key string) error {
	if len(flags.Given()) > 0 {
		return Usage("--file takes no flags of jobs; put the fields into its lines")
	}
	in := a.in
	if name != "-" {
		f, err := OpenFile("--file", name)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	up := &upload{a: a, ctx: ctx, key: key, noCwd: noCwd}
	err := eachJob(up.from(in), up.add)
	if err == nil && up.jobs == 0 {
		err = queue.Errorf(queue.CodeInvalid, "%s holds no jobs", name)
	}
	return up.end(err)
}

func parseArray(raw []byte) ([]queue.Spec, error) {
	if err := queue.CheckJSON(raw); err != nil {
		return nil, Usage("%v; to run a shell line that begins with [ use --command", err)
	}
	specs := []queue.Spec{}
	err := queue.Elements(raw, func(value json.RawMessage) error {
		var s queue.Spec
		if err := s.Decode(value, nil); err != nil {
			return numbered(err, len(specs)+1)
		}
		specs = append(specs, s)
		return nil
	})
	return specs, err
}

// numbered is an error about one job of several.
func numbered(err error, n int) error {
	if e, ok := errors.AsType[*queue.Error](err); ok {
		return e.At(n)
	}
	return err
}

// lineError is an error about one line of a file; it is invalid whatever its
// cause was.
type lineError struct {
	line  int
	cause error
}

// Error names the line.
func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.cause) }

// Unwrap is the cause.
func (e *lineError) Unwrap() error { return e.cause }

func atLine(err error, line int) error {
	if e, ok := errors.AsType[*queue.Error](err); ok {
		err = e.At(0)
	}
	return &lineError{line, err}
}

// enqueueBatch puts jobs in the queue, all or none.
func (a *App) enqueueBatch(ctx context.Context, specs []queue.Spec, noCwd bool, key string) error {
	if len(specs) > queue.MaxBatch {
		return queue.Errorf(queue.CodeTooLarge, "%d jobs are given; one batch may have %d, and %d bytes: split it", len(specs), queue.MaxBatch, control.MaxLine)
	}
	for i := range specs {
		if err := prepare(&specs[i], noCwd); err != nil {
			return numbered(err, i+1)
		}
	}
	c, err := a.clientStarting(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	got, err := c.EnqueueBatch(ctx, control.EnqueueBatch{Jobs: specs, Commit: true, Key: key})
	if err != nil {
		return err
	}
	if err := a.printIDs(got.IDs); err != nil {
		return err
	}
	a.Say("%d jobs enqueued", len(got.IDs))
	return nil
}

// printIDs prints the ids of new jobs.
func (a *App) printIDs(ids []string) error {
	if !a.Structured() {
		_, err := io.WriteString(a.Out, strings.Join(ids, "\n")+"\n")
		return err
	}
	type named struct {
		ID string `json:"id"`
	}
	list := make([]named, len(ids))
	for i, id := range ids {
		list[i].ID = id
	}
	return PrintList(a, list)
}
