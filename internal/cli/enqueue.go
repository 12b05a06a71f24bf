package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

func enqueueVerb(a *App) *cobra.Command {
	var spec queue.Spec
	var m source
	var key, batch, afterBatch string
	var noCwd bool
	cmd := &cobra.Command{
		Use:   "enqueue ['COMMAND' | '{JSON}' | -- PROGRAM ARGS…]",
		Short: "Add one or more jobs to the queue",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			dash := cmd.ArgsLenAtDash()
			if err := m.take("enqueue", cmd.Flags(), args, dash); err != nil {
				return err
			}
			m.warnOfCode(&a.Output)
			if m.isTables() && a.program.EachTable == nil {
				return a.execDaemon()
			}
			if err := a.inBatch(ctx, &spec, batch); err != nil {
				return err
			}
			if err := a.afterBatch(ctx, &spec, afterBatch); err != nil {
				return err
			}
			if a.next && spec.Priority != nil {
				return Usage("--next: cannot be combined with --priority; leave one of them out")
			}
			if m.given() {
				return a.enqueueMany(ctx, &m, &spec, noCwd, key)
			}
			list, err := readWords(a.In, "enqueue", &spec, args, dash)
			if err != nil {
				return err
			}
			if list != nil {
				return a.enqueueBatch(ctx, list, noCwd, key)
			}
			return a.enqueueOne(ctx, &spec, noCwd, key)
		},
	}
	specFlags(cmd, &spec)
	m.add(cmd.Flags())
	cmd.Flags().Var(givenOnce(&batch), "batch", "add the job to the batch `NAME` (label batch=NAME)")
	cmd.Flags().Var(givenOnce(&afterBatch), "after-batch", "run when all your jobs in batch `NAME` have succeeded")
	cmd.Flags().Lookup("after-batch").Annotations = map[string][]string{themeOf: {themeOrder}}
	setsField(cmd.Flags().Lookup("after-batch"), "depends_on")
	cmd.Flags().Var(NonEmpty(&key), "key", "idempotency `KEY`: a repeated request with the same key adds no second job")
	cmd.Flags().BoolVar(&noCwd, "no-cwd", false, "run in your home directory, not in the current one")
	a.requireFlag(cmd.Flags())
	cmd.Flags().BoolVar(&a.next, "next", false, "start before your other waiting jobs")
	return cmd
}

// manyInBatch bounds how many jobs of a batch inBatch counts.
const manyInBatch = 10_000

// inBatch adds the label of a batch to a spec, and prints how many jobs the batch already has.
func (a *App) inBatch(ctx context.Context, s *queue.Spec, name string) error {
	if name == "" {
		return nil
	}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	s.Labels["batch"] = name
	if err := s.CheckText(); err != nil {
		return err
	}
	c, err := a.clientStarting(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	n, more := 0, true
	for p := (control.List{Batch: name}); more && n < manyInBatch; {
		page, err := c.List(ctx, p)
		if err != nil {
			return err
		}
		n += len(page.Jobs)
		if more = page.Next != nil; more {
			p.Cursor = *page.Next
		}
	}
	switch {
	case n >= manyInBatch:
		fmt.Fprintf(a.Err, "queuectl: batch %s already has at least %d jobs; adding to it\n", a.Clean(a.Err, name), manyInBatch)
	case n > 0:
		fmt.Fprintf(a.Err, "queuectl: batch %s already has %s; adding to it\n", a.Clean(a.Err, name), Jobs(n))
	}
	return nil
}

// readWords parses the arguments of a command into s. A JSON array is returned as a list of specs.
func readWords(in io.Reader, verb string, s *queue.Spec, args []string, dash int) ([]queue.Spec, error) {
	given := len(s.Given()) > 0
	if s.Stdin != nil && *s.Stdin == "-" {
		text, err := readStdin(in)
		if err != nil {
			return nil, err
		}
		s.Stdin = &text
	}
	switch {
	case dash == 0 && len(args) > 0:
		s.Argv = args
	case dash > 0:
		return nil, Usage("unexpected words before --; write the whole program after --: queuectl %s -- %s", verb, queue.CommandText("", args))
	case len(args) > 1:
		return nil, Usage("%d words given; quote them as one shell command: queuectl %s %s, or run the program without a shell: queuectl %[2]s -- %[4]s", len(args), verb, queue.Word(strings.Join(args, " ")), queue.CommandText("", args))
	case len(args) == 1 && strings.HasPrefix(strings.TrimSpace(args[0]), "["):
		specs, err := parseArray([]byte(args[0]))
		if err == nil && given {
			return nil, Usage("job flags cannot be combined with a JSON array; put the settings into the objects of the array")
		}
		return specs, err
	case len(args) == 1 && strings.HasPrefix(strings.TrimSpace(args[0]), "{"):
		return nil, mergeJSON(s, args[0])
	case len(args) == 1 && s.Command != nil:
		return nil, Usage("--command: cannot be combined with a command given as an argument; use one of them")
	case len(args) == 1:
		s.Command = &args[0]
	}
	return nil, nil
}

// mergeJSON parses a spec from JSON. Flags override its fields.
func mergeJSON(flags *queue.Spec, text string) error {
	if err := queue.CheckJSON([]byte(text)); err != nil {
		return Usage("%v; to run a shell command that begins with {, use --command", err)
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
		return "", fmt.Errorf("cannot read standard input: %w", err)
	}
	if len(raw) > queue.MaxStdin {
		return "", queue.Invalid("stdin", "standard input is longer than %d bytes; put it in a file and use --stdin-file", queue.MaxStdin)
	}
	return string(raw), nil
}

func (a *App) enqueueOne(ctx context.Context, s *queue.Spec, noCwd bool, key string) error {
	if err := Prepare(s, noCwd); err != nil {
		return err // this check comes before a service is started
	}
	c, err := a.clientStarting(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	got, err := c.Enqueue(ctx, control.Enqueue{Spec: *s, Key: key, RequireLimits: a.requireLimits, Next: a.next})
	if err != nil {
		return err
	}
	namedFiles{}.warn(&a.Output, a.cmd, s)
	warnUnenforced(&a.Output, got.Unenforced)
	printNewQueues(&a.Output, got.NewQueues)
	printUnique(&a.Output, s, got.ID, got.Duplicate)
	warnExpired(&a.Output, s, a.Quiet || !IsTerminal(a.Err))
	printCancelled(&a.Output, &got)
	printNotes(&a.Output, a.cmd, got.Notes)
	if a.Structured() {
		job, err := c.Show(ctx, control.Show{ID: control.Name(got.ID)})
		if err != nil {
			return err
		}
		return a.PrintJSON(&job.Job)
	}
	if err := a.Println(got.ID); err != nil {
		return fmt.Errorf("job %s was enqueued, but its id could not be printed: %w", got.ID, err)
	}
	if got.Duplicate && s.Unique != nil {
		return nil
	}
	if got.Duplicate {
		a.Say("job %s was already enqueued with the same --key", got.ID)
		return nil
	}
	now := time.Now()
	if hasExpired(s.ExpiresAt, now) || got.State == queue.Cancelled.String() {
		got.MaxAttempts = 0 // the message must not announce attempts, because the job will not run
	}
	a.Say("job %s enqueued%s%s", got.ID, whenDue(s, now), attempts(got.MaxAttempts))
	return nil
}

// whenDue describes when a job is due and when it expires, like "; due …". It omits a time that the
// user did not set.
func whenDue(s *queue.Spec, now time.Time) (text string) {
	switch {
	case s.RunAt != nil:
		text = "; " + dueText(s.RunAt.Time(), now)
	case s.Delay != nil:
		text = "; " + dueText(now.Add(*s.Delay), now)
	}
	if s.ExpiresAt != nil && *s.ExpiresAt != 0 {
		text += "; " + expiryText(s.ExpiresAt.Time(), now)
	}
	return text
}

// uploadOptions returns the options for enqueuing several jobs.
func (a *App) uploadOptions(key string, noCwd bool) uploadOptions {
	return uploadOptions{
		out: &a.Output, cmd: a.cmd, finder: &a.Finder,
		key: key, noCwd: noCwd, requireLimits: a.requireLimits, next: a.next,
	}
}

// enqueueMany enqueues all jobs of a source, or none.
func (a *App) enqueueMany(ctx context.Context, m *source, common *queue.Spec, noCwd bool, key string) error {
	warnExpired(&a.Output, common, a.Quiet || !IsTerminal(a.Err))
	due := whenDue(common, time.Now())
	up := newUpload(ctx, a.uploadOptions(key, noCwd), common)
	f, err := m.open(a.In)
	if err != nil {
		return err
	}
	var in io.Reader
	if f != nil {
		defer f.Close()
		in = up.source.open(f)
	}
	// If no flag changes a job, each job is sent unchanged.
	plain := m.file != "" && len(common.Given()) == 0
	each := m.each
	if m.isTables() {
		each = func(in io.Reader, with func([]byte, int) error) error { return a.program.EachTable(m.file, in, with) }
	}
	err = each(in, func(raw []byte, line int) error {
		if plain {
			return up.add(raw, line)
		}
		spec, err := m.spec(common, raw)
		if err == nil {
			raw, err = json.Marshal(spec)
		}
		if err != nil {
			return withLine(err, line)
		}
		return up.add(raw, line)
	})
	if err == nil && up.jobsRead == 0 {
		m.sayNoJobs(&a.Output)
		return printStored(ctx, &a.Output, nil, nil)
	}
	if e, ok := errors.AsType[*lineError](err); ok && f == nil {
		e.what = "argument"
	}
	return up.end(err, due)
}

func parseArray(raw []byte) ([]queue.Spec, error) {
	if err := queue.CheckJSON(raw); err != nil {
		return nil, Usage(`%v; to run a shell command that begins with "[", use --command`, err)
	}
	specs := []queue.Spec{}
	err := queue.Elements(raw, func(value json.RawMessage) error {
		var s queue.Spec
		if err := s.Decode(value, nil); err != nil {
			return withIndex(err, len(specs)+1)
		}
		specs = append(specs, s)
		return nil
	})
	return specs, err
}

// withIndex adds the number of the job to an error about one of several jobs.
func withIndex(err error, n int) error {
	if e, ok := errors.AsType[*queue.Error](err); ok {
		return e.At(n)
	}
	return err
}

// lineError is an error about one line of a file. It counts as a usage error.
type lineError struct {
	what  string // "line", or another name for a part of the input
	line  int
	cause error
}

// Error returns the message with the line number.
func (e *lineError) Error() string { return fmt.Sprintf("%s %d: %v", e.what, e.line, e.cause) }

// Unwrap returns the cause.
func (e *lineError) Unwrap() error { return e.cause }

func withLine(err error, line int) error {
	if e, ok := errors.AsType[*queue.Error](err); ok {
		err = e.At(0)
	}
	return &lineError{"line", line, err}
}

// enqueueBatch enqueues all the jobs, or none.
func (a *App) enqueueBatch(ctx context.Context, specs []queue.Spec, noCwd bool, key string) error {
	if len(specs) == 0 {
		fmt.Fprintln(a.Err, "queuectl: the JSON array contains no jobs")
		return printStored(ctx, &a.Output, nil, nil)
	}
	if len(specs) > queue.MaxBatch {
		return queue.Errorf(queue.CodeTooLarge, "%d jobs given; a JSON array may have at most %d jobs and %d bytes; split the array, or use --file", len(specs), queue.MaxBatch, control.MaxLine)
	}
	for i := range specs {
		if err := Prepare(&specs[i], noCwd); err != nil {
			return withIndex(err, i+1)
		}
	}
	c, err := a.clientStarting(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	got, err := c.EnqueueBatch(ctx, control.EnqueueBatch{Jobs: specs, Commit: true, Key: key, RequireLimits: a.requireLimits, Next: a.next})
	if err != nil {
		return err
	}
	files, expired := namedFiles{}, expiries{}
	for i := range specs {
		files.warn(&a.Output, a.cmd, &specs[i])
		expired.add("job", i+1, specs[i].ExpiresAt)
	}
	printExpired(&a.Output, &expired)
	warnUnenforced(&a.Output, got.Unenforced)
	printNewQueues(&a.Output, got.NewQueues)
	for i := range got.Found {
		got.Found[i]++
	}
	printFound(&a.Output, "job", got.Found, len(got.IDs))
	printNotes(&a.Output, a.cmd, got.Notes)
	if err := printStored(ctx, &a.Output, c, got.IDs); err != nil {
		return err
	}
	if expired.never == len(specs) {
		got.MaxAttempts = 0
	}
	a.Say("%d jobs enqueued%s", len(got.IDs)-len(got.Found), attempts(got.MaxAttempts))
	return nil
}

// warnExpired prints that a job will not run because it has expired. The parameter unsaid is false
// if another message already says that.
func warnExpired(o *Output, s *queue.Spec, unsaid bool) {
	if now := time.Now(); unsaid && hasExpired(s.ExpiresAt, now) {
		fmt.Fprintf(o.Err, "queuectl: the job %s\n", expiryText(s.ExpiresAt.Time(), now))
	}
}

// printUnique prints that a job was not enqueued because another job has its unique key.
func printUnique(o *Output, s *queue.Spec, id string, found bool) {
	if found && s.Unique != nil {
		fmt.Fprintf(o.Err, "queuectl: not enqueued: job %s already has the unique key %s\n", id, o.Clean(o.Err, *s.Unique))
	}
}

// maxFoundListed is how many jobs a message names that were not enqueued.
const maxFoundListed = 10

// printFound prints which jobs were not enqueued, because other jobs have the same unique keys.
func printFound(o *Output, what string, places []int, total int) {
	if len(places) == 0 {
		return
	}
	slices.Sort(places)
	text := ""
	for i, at := range places {
		if i == maxFoundListed {
			text += Sign(", …")
			break
		}
		text += ", " + strconv.Itoa(at)
	}
	fmt.Fprintf(o.Err, "queuectl: %d of %s not enqueued (%s%s), because other jobs have the same unique keys\n", len(places), Jobs(total), what, text[1:])
}

// printCancelled prints that a new job will not run, because a job it depends on has not ended as
// required.
func printCancelled(o *Output, got *control.Enqueued) {
	if got.State != "" {
		fmt.Fprintf(o.Err, "queuectl: job %s was %s immediately: a job it depends on ended, but not with the required result; details: queuectl why %s\n", got.ID, got.State, got.ID)
	}
}
