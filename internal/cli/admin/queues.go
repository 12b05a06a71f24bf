package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/cli/when"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// QueueVerb returns the command "queuectl queue".
func QueueVerb(app *cli.App) *cobra.Command {
	a := adminCommands{app}
	queues := func(ctx context.Context, c *control.Client, after string) ([]control.QueueView, string, error) {
		page, err := c.ListQueues(ctx, control.QueueListParams{AfterName: after})
		return page.Queues, page.Next, err
	}
	list := cli.ListVerb(app, "List queues that have settings or jobs", present.NoQueuesText, present.QueueHeadings(),
		true, queues, queueRow)
	return cli.GroupCommand("queue", "Configure, pause and list named queues", list, queueSetVerb(a), queuePauseVerb(a),
		queueResumeVerb(a), queueRmVerb(a))
}

func queueRow(q *control.QueueView) []string { return present.QueueRow(q, time.Now()) }

func queueSetVerb(a adminCommands) *cobra.Command {
	var p control.ConfigureQueueParams
	var spec queue.Spec
	var removedDefaults []string
	cmd := cli.NewCommand("set NAME", "Configure a queue, even before its first job",
		cli.ExactArgs(1, "the name of a queue"), func(ctx context.Context, args []string) error {
			p.Name = args[0]
			if err := control.CheckParamText("queue", "name", p.Name); err != nil {
				return err
			}
			if hasNoLocalFlagsSet(a.Cmd) {
				return fault.Usagef("%s: no changes given; use flags such as --concurrency N, --weight N or --default "+
					"FIELD=VALUE; example: queuectl queue set %s --concurrency 1", a.Cmd.CommandPath(),
					queue.QuoteShellWord(queue.ClipForMessage(p.Name)))
			}
			if fields := spec.GivenFields(); len(fields) > 0 || len(removedDefaults) > 0 {
				for _, name := range removedDefaults {
					field := strings.ReplaceAll(name, "-", "_")
					if err := queue.CheckFieldName(field); err != nil {
						return fault.Usagef("--no-default: %v", err)
					}
					fields[field] = nil
				}
				raw, err := json.Marshal(fields)
				if err != nil {
					return err
				}
				p.JobDefaults = raw
			}
			return a.WithStartedService(ctx, func(c *control.Client) error {
				return cli.CallClientAndPrint(ctx, a.App, c, (*control.Client).ConfigureQueue, p,
					func(reply control.QueueView) error {
						list := []control.QueueView{reply}
						return term.PrintTable(&a.Output, list, "", present.QueueHeadings(), queueRow)
					})
			})
		})
	cmd.ValidArgsFunction = a.CompleteQueues()
	f := cmd.Flags()
	input.OptionalVar(f, &p.Concurrency, input.ParseInt, "concurrency", "",
		"run at most `N` jobs of the queue at the same time; 0 means no limit")
	input.OptionalVar(f, &p.Weight, input.ParseInt, "weight", "",
		"weight of the queue: with weight 2 it starts twice as many jobs as with 1; `N` from 1 to 1000 (default 1)")
	input.OptionalVar(f, &p.MaxWaitingJobs, queue.ParseInteger, "max-pending", "",
		"reject new jobs while `N` jobs of the queue are waiting; 0 means no limit")
	f.Func("default", "set the default `FIELD=VALUE` for jobs of the queue that do not set FIELD, such as timeout=2h",
		func(text string) error {
			name, value, found := strings.Cut(text, "=")
			if !found {
				return fmt.Errorf("%q is not FIELD=VALUE; write it like timeout=2h", queue.ClipForMessage(text))
			}
			if err := spec.SetFieldText(strings.ReplaceAll(name, "-", "_"), value); err != nil {
				// Return an error with the same text that is not a *queue.Error: translateFlagError would remove the name of the
				// field from the message of a *queue.Error.
				return fmt.Errorf("%v", err)
			}
			return nil
		})
	input.OptionalVar(f, &p.Retention, parseRetentionAge, "retention", "",
		"when to remove completed and cancelled jobs: after `DURATION`, never, or default (settings retention_completed, "+
			"retention_cancelled)")
	input.OptionalVar(f, &p.RetentionMaxJobs, queue.ParseInteger, "retention-max-jobs", "",
		"keep only the newest `N` completed and cancelled jobs; 0: use the setting retention_max_jobs")
	input.OptionalVar(f, &p.RetentionOutputBytes, queue.ParseSize, "retention-output", "",
		"keep only the newest `SIZE` of output of completed and cancelled jobs; 0: use the setting retention_output")
	f.StringSliceVar(&removedDefaults, "no-default", nil, "remove the queue's default for `FIELD`")
	return cmd
}

func queuePauseVerb(a adminCommands) *cobra.Command {
	var p control.QueuePauseParams
	cmd := cli.NewCommand("pause NAME… | --all", "Stop starting jobs of a queue; running jobs continue",
		nil, func(ctx context.Context, args []string) error {
			return a.applyToQueues(args, p.AllQueues, func(c *control.Client, name string) (control.QueueList, error) {
				p.Name = name
				return c.PauseQueues(ctx, p)
			})
		})
	a.AcceptNames(cmd, "queue", a.CompleteQueues())
	f := cmd.Flags()
	f.BoolVar(&p.AllQueues, "all", false, "pause all queues that exist now; to pause new queues too, use queuectl drain")
	f.Var(input.NonEmptyValue(&p.Reason), "reason", "`REASON` to show for the pause")
	f.BoolVar(&p.FreezeRunningJobs, "freeze", false, "also freeze running jobs until the queue is resumed")
	input.DurationVar(f, &p.PauseDuration, "for", "resume the queue after `DURATION`")
	input.FutureTimeVar(f, &p.PauseUntil, "until", "resume the queue at `TIME`")
	return cmd
}

func queueResumeVerb(a adminCommands) *cobra.Command {
	var all bool
	cmd := cli.NewCommand("resume NAME… | --all", "Resume paused queues",
		nil, func(ctx context.Context, args []string) error {
			return a.applyToQueues(args, all, func(c *control.Client, name string) (control.QueueList, error) {
				return c.ResumeQueues(ctx, control.QueueResumeParams{Name: name, AllQueues: all})
			})
		})
	a.AcceptNames(cmd, "queue", a.CompleteQueues())
	cmd.Flags().BoolVar(&all, "all", false, "resume all queues")
	return cmd
}

func queueRmVerb(a adminCommands) *cobra.Command {
	cmd := cli.NewCommand("rm NAME…", "Remove the configuration of an empty queue",
		nil, func(ctx context.Context, args []string) error {
			return a.applyToQueues(args, false, func(c *control.Client, name string) (control.QueueList, error) {
				return c.RemoveQueue(ctx, control.QueueRemoveParams{Name: name})
			})
		})
	a.AcceptNames(cmd, "queue", a.CompleteQueues())
	return cmd
}

// applyToQueues calls method once for each named queue and prints the results. If allQueues is true, it calls method
// only once, with an empty name, which means all queues.
func (a adminCommands) applyToQueues(names []string, allQueues bool,
	method func(c *control.Client, name string) (control.QueueList, error)) error {
	switch {
	case allQueues && len(names) > 0:
		return fault.Usagef("--all: cannot be combined with queue names; use one of them")
	case allQueues:
		names = []string{""}
	case len(names) == 0:
		return fault.Usagef("%s: no queue given; list the queues with: queuectl queue list", a.Cmd.CommandPath())
	}
	return a.WithClient(func(c *control.Client) error {
		done := []control.QueueView{}
		for _, name := range names {
			got, err := method(c, name)
			if err != nil {
				return err
			}
			done = append(done, got.Queues...)
		}
		if a.WantsJSON() {
			return term.PrintJSONList(&a.Output, done)
		}
		var err error
		for _, q := range done {
			state := "is not paused any more: its time is over, or a user resumed it"
			switch {
			case a.Cmd.Name() == "rm":
				state = "was removed"
			case a.Cmd.Name() == "resume":
				state = "is resumed"
			case q.Paused:
				state = "is " + present.QueuePauseText(&q)
			}
			if a.Quiet {
				err = a.Println(q.Queue)
			} else {
				err = a.PrintTerminalMessage("queue %s %s", q.Queue, state)
			}
		}
		return err
	})
}

// hasNoLocalFlagsSet reports whether the user set none of the command's own flags. Flags that the command inherits from
// its parent commands do not count.
func hasNoLocalFlagsSet(cmd *cobra.Command) bool {
	nothing := true
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { nothing = nothing && !f.Changed })
	return nothing
}

func parseNonEmptyText(text string) (string, error) {
	if text == "" {
		return "", fault.ErrEmptyFlagValue
	}
	return text, nil
}

func parseRetentionAge(text string) (age control.RetentionAge, err error) {
	if text != "never" && text != "default" {
		if short, ok := when.NormalizeDuration(text); ok {
			text = short
		}
	}
	raw, _ := json.Marshal(text) // json.Marshal cannot fail for a string
	return age, age.UnmarshalJSON(raw)
}
