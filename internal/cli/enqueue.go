package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/enqueue"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

func enqueueVerb(a *App) *cobra.Command {
	var spec queue.Spec
	var source input.Source
	var idempotencyKey, batch, afterBatch string
	var runInHomeDir bool
	cmd := NewCommand("enqueue ['COMMAND' | '{JSON}' | -- PROGRAM ARGS…]", "Add one or more jobs to the queue",
		nil, func(ctx context.Context, args []string) error {
			dash := a.Cmd.ArgsLenAtDash()
			if err := source.ParseArgs("enqueue", a.Cmd.Flags(), args, dash); err != nil {
				return err
			}
			source.WarnPlaceholderInCode(&a.Output)
			if source.IsTOML() && a.Program.EachTOMLJob == nil {
				return a.execQueuectld()
			}
			if err := a.addToBatch(ctx, &spec, batch); err != nil {
				return err
			}
			if err := a.addBatchDependencies(ctx, &spec, afterBatch); err != nil {
				return err
			}
			if a.startBeforeOwnJobs && spec.Priority != nil {
				return fault.Usagef("--next: cannot be combined with --priority; leave one of them out")
			}
			if source.IsGiven() {
				return a.enqueueJobsFromSource(ctx, &source, &spec, runInHomeDir, idempotencyKey)
			}
			list, err := input.ParseSpecArgs(a.Stdin, "enqueue", &spec, args, dash)
			if err != nil {
				return err
			}
			if list != nil {
				return a.enqueueJSONArray(ctx, list, runInHomeDir, idempotencyKey)
			}
			return a.enqueueOneJob(ctx, &spec, runInHomeDir, idempotencyKey)
		})
	input.AddSpecFlags(cmd, &spec)
	f := cmd.Flags()
	source.AddFlags(f)
	f.Var(input.OnceOnlyValue(&batch), "batch", "add the job to the batch `NAME` (label batch=NAME)")
	f.Var(input.OnceOnlyValue(&afterBatch), "after-batch",
		"run when all your jobs in batch `NAME` have succeeded")
	f.SetAnnotation("after-batch", input.FlagGroupAnnotation, []string{input.QueuesAndLocksGroup})
	input.AnnotateFlagWithField(f, "after-batch", "depends_on")
	f.Var(input.NonEmptyValue(&idempotencyKey), "key",
		"idempotency `KEY`: a repeated request with the same key adds no second job")
	f.BoolVar(&runInHomeDir, "no-cwd", false, "run in your home directory, not in the current one")
	a.AddRequireLimitsFlag(f)
	f.BoolVar(&a.startBeforeOwnJobs, "next", false, "start before your other waiting jobs")
	return cmd
}

// maxCountedBatchJobs is the number up to which addToBatch counts the jobs of a batch.
const maxCountedBatchJobs = 10_000

// addToBatch adds the label of a batch to a spec, and prints how many jobs the batch already has.
func (a *App) addToBatch(ctx context.Context, s *queue.Spec, batchName string) error {
	if batchName == "" {
		return nil
	}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	s.Labels["batch"] = batchName
	if err := s.CheckUTF8(); err != nil {
		return err
	}
	return a.WithStartedService(ctx, func(c *control.Client) error {
		n := 0
		for page, err := range JobPages(ctx, c, control.JobListParams{Batch: batchName}) {
			if err != nil {
				return err
			}
			if n += len(page.Jobs); n >= maxCountedBatchJobs {
				break
			}
		}
		switch {
		case n >= maxCountedBatchJobs:
			a.PrintMessage("batch %s already has at least %d jobs; adding to it", batchName, maxCountedBatchJobs)
		case n > 0:
			a.PrintMessage("batch %s already has %s; adding to it", batchName, present.JobCountText(n))
		}
		return nil
	})
}

func (a *App) enqueueOneJob(ctx context.Context, s *queue.Spec, runInHomeDir bool, idempotencyKey string) error {
	if err := input.CompleteAndCheckSpec(s, runInHomeDir); err != nil {
		return err // return the error here, so that an invalid job does not start the service
	}
	return a.WithStartedService(ctx, func(c *control.Client) error {
		got, err := c.Enqueue(ctx, control.EnqueueParams{JobSpec: *s, IdempotencyKey: idempotencyKey,
			RequireEnforceableLimits: a.RequireEnforcedLimits, RunBeforeCallersJobs: a.startBeforeOwnJobs})
		if err != nil {
			return err
		}
		input.CheckedFiles{}.WarnUnusableFiles(&a.Output, a.Cmd, s)
		enqueue.PrintEnqueueRemarks(&a.Output, a.Cmd, s, &got, !a.ShowsInfo())
		if a.WantsJSON() {
			job, err := ShowJob(ctx, c, got.JobID)
			if err != nil {
				return err
			}
			return a.PrintJSON(&job.Job)
		}
		if err := a.Println(got.JobID); err != nil {
			return fmt.Errorf("job %s was enqueued, but its id could not be printed: %w", got.JobID, err)
		}
		if got.AlreadyExisted && s.Unique != nil {
			return nil
		}
		if got.AlreadyExisted {
			return a.PrintTerminalMessage("job %s was already enqueued with the same --key", got.JobID)
		}
		now := time.Now()
		if present.HasExpired(s.ExpiresAt, now) || got.State == queue.Cancelled.String() {
			got.MaxAttempts = 0 // the job will not run, so the message must not mention attempts
		}
		return a.PrintTerminalMessage("job %s enqueued%s%s", got.JobID, present.DueAndExpirySuffix(s, now),
			present.MaxAttemptsText(got.MaxAttempts))
	})
}

// UploadOptions returns the options for enqueuing several jobs. inputUnitName is the word for the part of the input
// that contains one job, for example "line".
func (a *App) UploadOptions(inputUnitName, idempotencyKey string, runInHomeDir bool) enqueue.UploadOptions {
	return enqueue.UploadOptions{
		Output: &a.Output, Cmd: a.Cmd, Finder: &a.ServiceFinder, InputUnitName: inputUnitName,
		IdempotencyKey: idempotencyKey, RunInHomeDir: runInHomeDir, RequireEnforcedLimits: a.RequireEnforcedLimits,
		StartBeforeOtherOwnJobs: a.startBeforeOwnJobs,
	}
}

// enqueueJobsFromSource enqueues all jobs of a source. After an error it enqueues none of them.
func (a *App) enqueueJobsFromSource(ctx context.Context, source *input.Source, commonSpec *queue.Spec,
	runInHomeDir bool,
	idempotencyKey string) error {
	enqueue.WarnIfJobExpired(&a.Output, commonSpec, !a.ShowsInfo())
	due := present.DueAndExpirySuffix(commonSpec, time.Now())
	f, err := source.OpenFile(a.Stdin)
	if err != nil {
		return err
	}
	part := "line"
	if f == nil {
		part = "argument"
	}
	up := enqueue.NewUpload(ctx, a.UploadOptions(part, idempotencyKey, runInHomeDir), commonSpec)
	var in io.Reader
	if f != nil {
		defer f.Close()
		in = up.ReadProgress.CountingReader(f)
	}
	// If no flag changes a field of the jobs, each job of the file can be sent unchanged.
	plain := source.JobsFile != "" && len(commonSpec.GivenFields()) == 0
	each := source.EachJob
	if source.IsTOML() {
		each = func(in io.Reader, handleJob func([]byte, int) error) error {
			return a.Program.EachTOMLJob(source.JobsFile, in, handleJob)
		}
	}
	err = each(in, func(raw []byte, line int) error {
		if plain {
			return up.AddJob(raw, line)
		}
		spec, err := source.JobSpec(commonSpec, raw)
		if err == nil {
			raw, err = json.Marshal(spec)
		}
		if err != nil {
			return fault.WithLineNumber(err, line)
		}
		return up.AddJob(raw, line)
	})
	if err == nil && up.ReadJobCount == 0 {
		source.PrintNoJobs(&a.Output)
		return enqueue.PrintEnqueuedJobs(ctx, &a.Output, nil, nil)
	}
	return up.FinishAndPrint(err, due)
}

// enqueueJSONArray enqueues all jobs of a JSON array. After an error it enqueues none of them.
func (a *App) enqueueJSONArray(ctx context.Context, jobs []json.RawMessage, runInHomeDir bool,
	idempotencyKey string) error {
	if len(jobs) == 0 {
		a.PrintMessage("the JSON array contains no jobs")
		return enqueue.PrintEnqueuedJobs(ctx, &a.Output, nil, nil)
	}
	up := enqueue.NewUpload(ctx, a.UploadOptions("entry", idempotencyKey, runInHomeDir), &queue.Spec{})
	var err error
	for i := 0; i < len(jobs) && err == nil; i++ {
		err = up.AddJob(jobs[i], i+1)
	}
	return up.FinishAndPrint(err, "")
}

// addBatchDependencies makes a job depend on all jobs of one of the caller's batches.
func (a *App) addBatchDependencies(ctx context.Context, s *queue.Spec, batchName string) error {
	if batchName == "" {
		return nil
	}
	return a.WithStartedService(ctx, func(c *control.Client) error {
		for page, err := range JobPages(ctx, c, control.JobListParams{Batch: batchName}) {
			if e, wrong := errors.AsType[*queue.Error](err); wrong && e.Field == "batch" {
				return fault.Usagef("--after-batch: %s", e.Message)
			}
			if err != nil {
				return err
			}
			for i := range page.Jobs {
				s.DependsOn = append(s.DependsOn, page.Jobs[i].ID)
			}
		}
		if len(s.DependsOn) == 0 {
			return fault.Usagef("--after-batch: you have no jobs in batch %q; see the batch of each job, in its label "+
				"\"batch\", with: queuectl list --columns id,labels", batchName)
		}
		return nil
	})
}

// AddRequireLimitsFlag adds the flag --require-limits. With this flag, the service rejects jobs whose limits it
// cannot enforce.
func (a *App) AddRequireLimitsFlag(f *pflag.FlagSet) {
	f.BoolVar(&a.RequireEnforcedLimits, "require-limits", false,
		"reject jobs with limits that this machine cannot enforce, instead of warning")
	f.SetAnnotation("require-limits", input.FlagGroupAnnotation, []string{input.ResourceLimitsGroup})
}
