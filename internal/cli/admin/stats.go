package admin

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// StatsVerb returns the command "queuectl stats".
func StatsVerb(app *cli.App) *cobra.Command {
	a := adminCommands{app}
	var p control.StatsParams
	cmd := cli.NewCommand("stats", "Show statistics: outcomes, waiting times, run times",
		cli.NoArgs, func(ctx context.Context, _ []string) error {
			return cli.ReadAndPrint(ctx, a.App, (*control.Client).ReadStats, p, a.printStats)
		})
	f := cmd.Flags()
	f.VarP(input.OnceOnlyValue(&p.Queue), "queue", "Q", "only attempts of jobs in this `QUEUE`")
	input.PastTimeVar(f, &p.Since, "since", "count the starts and ends of attempts since `TIME`; 2h means 2 "+
		"hours ago (default: 24h)")
	input.PastTimeVar(f, &p.Until, "until", "count the starts and ends of attempts before `TIME`; 2h means 2 hours ago")
	f.Var(input.NonEmptyValue(&p.PeriodLength), "by", "print one row per `PERIOD`: minute, hour or day")
	input.CompleteValues(cmd, "by", "minute", "hour", "day")
	return cmd
}

// printStats prints statistics as a table: one row for each period if the reply contains periods, else one row for each
// queue.
func (a adminCommands) printStats(s control.Stats) error {
	empty := "no attempts since " + present.LocalTimeText(s.Since)
	if len(s.Periods) == 0 {
		return term.PrintTable(&a.Output, s.Queues, empty, present.StatsHeadings("QUEUE"),
			func(q *control.QueueStats) []string { return present.StatsRow(q.Queue, &q.AttemptStatistics) })
	}
	head, layout, zone := "FROM"+termtext.HeadingZonePlaceholder, "2006-01-02 15:04 MST", time.Local
	if s.Grain == "day" {
		head, layout, zone = "DAY (UTC)", "2006-01-02", time.UTC
	}
	return term.PrintTable(&a.Output, s.Periods, empty, present.StatsHeadings(head),
		func(at *control.PeriodStats) []string {
			return present.StatsRow(queue.UnixMillis(at.StartTime).Time().In(zone).Format(layout), &at.AttemptStatistics)
		})
}
