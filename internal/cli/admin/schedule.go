package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/enqueue"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/internal/zone"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/schedule"
)

// ScheduleVerb returns the command "queuectl schedule".
func ScheduleVerb(app *cli.App) *cobra.Command {
	a := adminCommands{app}
	schedules := func(ctx context.Context, c *control.Client, cursor string) ([]control.Schedule, string, error) {
		page, err := c.ListSchedules(ctx, control.ScheduleListParams{Cursor: cursor})
		return page.Schedules, queue.ValueOr(page.Next, ""), err
	}
	list := cli.ListVerb(app, "List schedules", present.NoSchedulesText, present.ScheduleHeadings(), true, schedules,
		present.ScheduleRow)
	return cli.GroupCommand("schedule", "Manage recurring jobs", scheduleAddVerb(a), list, scheduleShowVerb(a),
		a.newScheduleActionCommand("rm", "Remove schedules, but keep the jobs they created", "is removed",
			(*control.Client).RemoveSchedule),
		a.newScheduleActionCommand("pause", "Pause schedules: they create no jobs until resumed", "is paused",
			(*control.Client).PauseSchedule),
		a.newScheduleActionCommand("resume", "Resume paused schedules", "is resumed", (*control.Client).ResumeSchedule),
		scheduleRunVerb(a))
}

func scheduleAddVerb(a adminCommands) *cobra.Command {
	var p control.ScheduleAddParams
	var runInHomeDir bool
	cmd := cli.NewCommand("add NAME 'CRON' ['COMMAND' | -- PROGRAM ARGS…]",
		"Add a schedule: a cron expression and the job to run", nil, func(ctx context.Context, args []string) error {
			list, err := a.parseScheduleArgs(&p, args, a.Cmd.ArgsLenAtDash())
			if err != nil {
				return err
			}
			// The service makes the same checks. But without a queue, no service may be running.
			if err := control.CheckParamText("scheduleName", "name", p.Name); err != nil {
				return err
			}
			if _, err := schedule.ParseCronLine(p.Cron); err != nil {
				return err
			}
			if list != nil {
				return fault.Usagef("a schedule takes one job definition; give a JSON object, not an array")
			}
			if p.JobSpec.Command == nil && p.JobSpec.Argv == nil {
				return fault.Usagef("%s: no command given; write it at the end: queuectl schedule add %s %s -- make backup",
					a.Cmd.CommandPath(), queue.QuoteShellWord(queue.ClipForMessage(p.Name)),
					queue.QuoteShellWord(queue.ClipForMessage(p.Cron)))
			}
			return a.addSchedule(ctx, &p, runInHomeDir)
		})
	input.AddSpecFlags(cmd, &p.JobSpec, "id", "run_at", "expires_at", "jitter")
	f := cmd.Flags()
	f.Var(input.NonEmptyValue(&p.TimeZone), "tz", "time `ZONE` of the cron expression, such as Europe/Berlin "+
		"(default: your time zone)")
	input.DurationVar(f, &p.Jitter, "jitter", "delay each job by a pseudo-random time of up to `DURATION`")
	f.Var(input.NonEmptyValue(&p.CatchUpPolicy), "catch-up",
		"how to catch up on missed times: `MODE` is none, one (one job for all missed times) or all (default none)")
	f.Var(input.NonEmptyValue(&p.OverlapPolicy), "overlap",
		"what to do if an earlier job of the schedule is unfinished: `MODE` is skip (create no job, the default), queue "+
			"(let the new job wait) or replace (cancel the earlier job)")
	f.Var(input.NewFieldFlag(&p.JobSpec, "jitter"), "backoff-jitter",
		"random spread of the retry delay, 0 to 1: with 0.2, it is up to 20 % shorter or longer")
	f.BoolVar(&p.ReplaceExisting, "replace", false, "replace an existing schedule with the same name")
	f.BoolVar(&runInHomeDir, "no-cwd", false, "run the jobs in your home directory, not in the current one")
	a.AddRequireLimitsFlag(f)
	input.CompleteValues(cmd, "catch-up", "none", "one", "all")
	input.CompleteValues(cmd, "overlap", "skip", "queue", "replace")
	return cmd
}

// parseScheduleArgs parses the arguments of "queuectl schedule add" into p. If the user gave a JSON array of jobs
// instead of one job, parseScheduleArgs returns the elements of the array, so that the caller can reject them.
func (a adminCommands) parseScheduleArgs(
	p *control.ScheduleAddParams, args []string, argCountBeforeDash int,
) ([]json.RawMessage, error) {
	const correctUsage = "queuectl schedule add NAME '0 3 * * *' -- program args"
	words := args
	if argCountBeforeDash >= 0 {
		words = args[:argCountBeforeDash]
	}
	switch {
	// The first word is a cron expression, so the user has left out the name.
	case len(words) > 0 && (strings.HasPrefix(words[0], "@") || len(strings.Fields(words[0])) >= 5):
		return nil, fault.Usagef("no schedule name given; write it before the cron expression: queuectl "+
			"schedule add NAME %s …", queue.QuoteShellWord(words[0]))
	// The second word is a command, so the user has left out the cron expression.
	case len(words) == 2 && argCountBeforeDash < 0 && !strings.ContainsAny(words[1][:min(len(words[1]), 1)],
		"@*0123456789"):
		return nil, fault.Usagef("no cron expression given; write it after the name: queuectl schedule add %s 'CRON' %s",
			queue.QuoteShellWord(words[0]), queue.QuoteShellWord(queue.ClipForMessage(words[1])))
	case len(words) < 2:
		return nil, fault.Usagef("a schedule needs a name and a cron expression; example: %s", correctUsage)
	case argCountBeforeDash >= 0 && len(words) > 2 || len(words) > 3:
		return nil, fault.Usagef("too many words (%d); quote the cron expression, for example: %s", len(words), correctUsage)
	}
	p.Name, p.Cron = words[0], words[1]
	if argCountBeforeDash >= 0 {
		argCountBeforeDash = 0
	}
	return input.ParseSpecArgs(a.Stdin, "schedule add "+p.Name+" '"+p.Cron+"'", &p.JobSpec, args[2:], argCountBeforeDash)
}

// addSchedule adds a schedule, and prints its next occurrences.
func (a adminCommands) addSchedule(ctx context.Context, p *control.ScheduleAddParams, runInHomeDir bool) error {
	if err := input.CompleteAndCheckSpec(&p.JobSpec, runInHomeDir); err != nil {
		return control.RenameJitterInError(err)
	}
	if p.TimeZone == "" {
		name, err := zone.CallerZoneName()
		if err != nil {
			return fault.Usagef("%v", err)
		}
		p.TimeZone = name
	}
	p.RequireEnforceableLimits = a.RequireEnforcedLimits
	add := func(c *control.Client, ctx context.Context, p control.ScheduleAddParams) (control.ScheduleDetail, error) {
		d, err := c.AddSchedule(ctx, p)
		return a.scheduleForJSON(d), err
	}
	return cli.CallAndPrint(ctx, a.App, add, *p, func(d control.ScheduleDetail) error {
		input.CheckedFiles{}.WarnUnusableFiles(&a.Output, a.Cmd, &p.JobSpec)
		enqueue.WarnUnenforcedLimits(&a.Output, d.UnenforcedLimits)
		enqueue.PrintServiceNotes(&a.Output, a.Cmd, d.Notes)
		if d.AlreadyExisted {
			a.PrintMessage("schedule %s already exists with the same settings", d.Name)
		}
		if a.Quiet {
			return a.Println(d.Name)
		}
		return a.PrintNameValuePairs(9, append([][2]string{{"Schedule", d.Name},
			{"When", present.ScheduleTimesText(&d.Schedule)}}, present.NextOccurrenceRows(&d)...))
	})
}

// scheduleForJSON returns a schedule for JSON output. It omits the environment, unless --full is set.
func (a adminCommands) scheduleForJSON(d control.ScheduleDetail) control.ScheduleDetail {
	if !a.PrintJobEnvironments {
		delete(d.JobSpec, "env")
	}
	return d
}

func scheduleShowVerb(a adminCommands) *cobra.Command {
	cmd := cli.NewCommand("show NAME", "Show a schedule, its next start times and its last results",
		cli.ExactArgs(1, "the name of a schedule"), func(ctx context.Context, args []string) error {
			show := func(c *control.Client, ctx context.Context, p control.ScheduleNameParams) (control.ScheduleDetail, error) {
				d, err := c.ShowSchedule(ctx, p)
				return a.scheduleForJSON(d), err
			}
			return cli.ReadAndPrint(ctx, a.App, show, control.ScheduleNameParams{Name: args[0]}, a.showSchedule)
		})
	a.AcceptNames(cmd, "schedule", a.completeScheduleNames())
	cmd.Flags().BoolVar(&a.PrintJobEnvironments, "full", false, "with --json: include the environment")
	return cmd
}

func (a adminCommands) showSchedule(d control.ScheduleDetail) error {
	rows := append([][2]string{
		{"Schedule", d.Name}, {"When", present.ScheduleTimesText(&d.Schedule)},
		{"State", present.ScheduleStateText(&d.Schedule)},
		{"Command", present.ScheduleJobTitle(&d.Schedule)},
		{"Catch up", d.CatchUp}, {"Overlap", d.Overlap}, {"User", d.User}, {"Added", present.LocalTimeText(d.CreatedAt)},
		{"Hidden", strings.Join(d.HiddenParts, ", ")},
	}, present.NextOccurrenceRows(&d)...)
	if err := a.PrintNameValuePairs(9, rows); err != nil || len(d.OccurrenceRecords) == 0 {
		return err
	}
	a.Println("")
	var runs [][]string
	for _, r := range d.OccurrenceRecords {
		job := present.DashIfNil(r.ID)
		if r.ID != nil {
			job += " " + cmp.Or(present.EmptyIfNil(r.State), "removed")
		}
		outcome := r.Outcome
		if r.RequestedBy != nil {
			outcome += " by " + *r.RequestedBy
		}
		if r.OutcomeNote != "" {
			outcome += ": " + r.OutcomeNote
		}
		runs = append(runs, []string{present.LocalTimeText(r.OccurrenceAt), outcome, job})
	}
	return a.PrintTable([]string{"OCCURRENCE" + termtext.HeadingZonePlaceholder, "OUTCOME", "JOB"}, runs)
}

// newScheduleActionCommand builds a command that calls method for each schedule that the user names, and then prints
// the outcome. outcomeText describes the outcome, for example "is paused".
func (a adminCommands) newScheduleActionCommand(name, short, outcomeText string,
	method cli.ClientMethod[control.ScheduleNameParams, control.Schedule]) *cobra.Command {
	cmd := cli.NewCommand(name+" NAME…", short,
		cli.AtLeastOneArg("schedule names"), func(ctx context.Context, names []string) error {
			return a.WithClient(func(c *control.Client) error {
				var schedules []control.Schedule
				var err error
				for _, name := range cli.UniqueIDs(names) {
					var s control.Schedule
					if s, err = method(c, ctx, control.ScheduleNameParams{Name: name}); err != nil {
						break
					}
					if schedules = append(schedules, s); !a.WantsJSON() {
						err = a.PrintActionResult(s.Name, "schedule "+s.Name+" "+outcomeText)
					}
				}
				if a.WantsJSON() && (err == nil || len(schedules) > 0) {
					err = errors.Join(err, term.PrintJSONList(&a.Output, schedules))
				}
				return err
			})
		})
	a.AcceptNames(cmd, "schedule", a.completeScheduleNames())
	return cmd
}

func scheduleRunVerb(a adminCommands) *cobra.Command {
	var p control.ScheduleNameParams
	cmd := cli.NamedRequestVerb(a.App, "run NAME", "Create a job from a schedule now and print its ID",
		"the name of a schedule", &p.Name, (*control.Client).RunScheduleNow, &p, func(reply control.EnqueueResult) error {
			a.PrintTerminalMessage("job %s enqueued", reply.JobID)
			return a.Println(reply.JobID)
		})
	a.AcceptNames(cmd, "schedule", a.completeScheduleNames())
	return cmd
}

// completeScheduleNames completes the names of schedules.
func (a adminCommands) completeScheduleNames() cobra.CompletionFunc {
	return a.CompleteNames(func(ctx context.Context, c *control.Client, add func(name, description string)) {
		page, _ := c.ListSchedules(ctx, control.ScheduleListParams{}) // on an error, offer nothing
		for _, s := range page.Schedules {
			add(s.Name, s.Cron+": "+termtext.Truncate(termtext.EscapeControlCharacters(present.ScheduleJobTitle(&s)), 60))
		}
	})
}
