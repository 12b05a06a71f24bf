package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// StatsVerb returns the command stats. Only queuectld links it, to keep queuectl small.
func StatsVerb(app *App) *cobra.Command {
	a := admin{app}
	var p control.StatsParams
	cmd := &cobra.Command{
		Use: "stats", Short: "Show statistics: outcomes, waiting times, run times", Args: Exactly(0, "no arguments"),
		Long: `Show statistics of each queue, or per minute, hour or day: outcomes, waiting
times and run times of attempts.

Statistics are kept even if their jobs are removed: per minute for 2 days, per
hour for 60 days and per day for 3 years. FAILURES is the percentage of finished
attempts that failed. P50 is the median of the waiting times or run times, and
95 % of them are not longer than P95. Both are accurate to a factor of 1.4.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return readAnswer(cmd.Context(), a.App, (*control.Client).Stats, p, a.printStats)
		},
	}
	f := cmd.Flags()
	f.VarP(givenOnce(&p.Queue), "queue", "Q", "only attempts of jobs in this `QUEUE`")
	instantVar(f, &p.Since, "since", "count the starts and ends of attempts since `TIME`; 2h means 2 hours ago (default: 24h)")
	instantVar(f, &p.Until, "until", "count the starts and ends of attempts before `TIME`; 2h means 2 hours ago")
	f.Var(NonEmpty(&p.By), "by", "print one row per `PERIOD`: minute, hour or day")
	// This call and the next fail only if the flag does not exist.
	cmd.RegisterFlagCompletionFunc("queue", a.completeQueues)
	cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions([]string{"minute", "hour", "day"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// printStats prints statistics as a table: one row for each period if there are any, else one for
// each queue.
func (a admin) printStats(s control.Stats) error {
	empty := "no attempts since " + local(s.Since)
	if len(s.Periods) == 0 {
		return a.named(len(s.Queues), empty, statsHead("QUEUE"), func(i int) []string {
			q := &s.Queues[i]
			return statsRow(q.Queue, &q.Figures)
		})
	}
	head, layout, zone := "FROM"+zonePlaceholder, "2006-01-02 15:04 MST", time.Local
	if s.Grain == "day" {
		head, layout, zone = "DAY (UTC)", "2006-01-02", time.UTC
	}
	return a.named(len(s.Periods), empty, statsHead(head), func(i int) []string {
		at := &s.Periods[i]
		return statsRow(queue.Millis(at.At).Time().In(zone).Format(layout), &at.Figures)
	})
}

func statsHead(first string) []string {
	return []string{first, "STARTED", "COMPLETED", "FAILED", "DEAD", "FAILURES", "WAIT P50", "WAIT P95", "RUN P50", "RUN P95"}
}

// statsRow formats one row of statistics.
func statsRow(name string, f *control.Figures) []string {
	rate := "-"
	if f.FailureRate != nil {
		rate = fmt.Sprintf("%.1f %%", 100**f.FailureRate)
	}
	row := []string{name, fmt.Sprint(f.Started), fmt.Sprint(f.Completed), fmt.Sprint(f.Failed), fmt.Sprint(f.Dead), rate}
	for _, ms := range []*int64{f.Wait.P50MS, f.Wait.P95MS, f.Run.P50MS, f.Run.P95MS} {
		row = append(row, orDashText(took(ms)))
	}
	return row
}

// took formats a duration with the precision of the statistics.
func took(ms *int64) string {
	switch {
	case ms == nil:
		return ""
	case *ms < 1000:
		return fmt.Sprintf("%dms", *ms)
	}
	return Roughly(time.Duration(*ms) * time.Millisecond)
}
