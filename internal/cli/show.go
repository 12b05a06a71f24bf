package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

func showVerb(a *App) *cobra.Command {
	var before int
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show a job, its attempts and the end of its output", Args: Exactly(1, "the id of a job"), ValidArgsFunction: a.completeIDs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return answer(cmd.Context(), a, (*control.Client).Show, control.Show{ID: control.Name(args[0]), HistoryBefore: before}, func(job control.JobDetail) error {
				if a.Quiet {
					return a.Println(job.ID)
				}
				return a.showJob(&job)
			})
		},
	}
	cmd.Flags().IntVar(&before, "history-before", 0, "of its attempts those before the `N`th")
	return cmd
}

// shownLines is how much output show prints.
const shownLines = 20

func (a *App) showJob(j *control.JobDetail) error {
	zone, _ := time.Now().Zone()
	rows := [][2]string{
		{"Job", j.ID}, {"Command", title(&j.Job)}, {"State", standing(&j.Job)}, {"Error", orEmpty(j.Error)},
		{"Exit code", orEmpty(j.ExitCode)}, {"Signal", orEmpty(j.Signal)},
		{"Priority", fmt.Sprintf("%d, %s for waiting, %d in effect", j.Priority, points(j.WaitingTime), j.EffectivePriority)},
		{"Attempts", fmt.Sprintf("%d of %d", j.Attempts, j.MaxAttempts)}, {"User", j.User}, {"Submitter", j.Submitter}, {"Folder", j.Cwd},
		{"Created", local(j.CreatedAt) + " " + zone}, {"Due", local(j.RunAt)},
		{"Next retry", orNone(j.NextRetryAt)}, {"Expires", orNone(j.ExpiresAt)}, {"Started", orNone(j.StartedAt)}, {"Finished", orNone(j.FinishedAt)},
		{"Waited", span(j.QueueTimeMS)}, {"Ran", ranFor(j.RunTimeMS)}, {"Worker", orEmpty(j.WorkerID)}, {"Pid", orEmpty(j.PID)}, {"Labels", labels(j.Labels)},
		{"Hidden", strings.Join(j.Hidden, ", ")},
	}
	if err := a.rows(11, rows); err != nil {
		return err
	}
	if len(j.History) > 0 {
		if err := a.showHistory(j); err != nil {
			return err
		}
	}
	for _, out := range []struct{ name, text string }{{"Output", j.Output}, {"Error output", j.Stderr}} {
		if out.text == "" {
			continue
		}
		if err := a.Println("\n" + out.name + ":\n  " + below(lastLines(a.Clean(a.Out, strings.TrimRight(out.text, "\n")), shownLines), 2)); err != nil {
			return err
		}
	}
	return nil
}

// standing is a job's state, with the reason if that says more.
func standing(j *control.Job) string {
	if j.Reason == nil || *j.Reason == j.State {
		return j.State
	}
	return j.State + " (" + *j.Reason + ")"
}

// showHistory prints the attempts that came, and how to see those before them.
func (a *App) showHistory(j *control.JobDetail) error {
	if err := a.Println(""); err != nil {
		return err
	}
	if first := j.History[0].Attempt; first > 1 {
		if err := a.Println(fmt.Sprintf("%d attempts in all; --history-before %d shows earlier ones", j.HistoryTotal, first)); err != nil {
			return err
		}
	}
	var table [][]string
	for _, h := range j.History {
		ended := orDash(h.ExitCode)
		switch {
		case h.Signal != nil:
			ended = fmt.Sprintf("signal %d", *h.Signal)
		case h.FinishedAt == 0:
			ended = "runs"
		}
		table = append(table, []string{fmt.Sprint(h.Attempt), local(h.StartedAt), ranFor(h.RunTimeMS), ended, h.Worker, orEmpty(h.Error)})
	}
	return a.table([]string{"ATTEMPT", zoned("STARTED"), "RAN", "EXIT", "WORKER", "ERROR"}, table)
}

func orEmpty[T any](p *T) string {
	if p == nil {
		return ""
	}
	return fmt.Sprint(*p)
}

func orNone(t control.Time) string {
	if t == 0 {
		return ""
	}
	return local(t)
}

func ranFor(ms *int64) string {
	if ms == nil {
		return ""
	}
	return span(*ms)
}

func labels(m map[string]string) string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list = append(list, k+"="+m[k])
	}
	return strings.Join(list, " ")
}

func lastLines(s string, n int) string {
	lines := strings.Split(breaks.Replace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func statusVerb(a *App) *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use: "status", Short: "Show how the queue is", Args: Exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.status(cmd.Context(), check) },
	}
	cmd.Flags().BoolVar(&check, "check", false, "print the health alone; exit 0 if it is fine, 1 if degraded, 2 if failing")
	return cmd
}

// status prints how the queue is, or its health alone, which the exit code then
// says too.
func (a *App) status(ctx context.Context, check bool) error {
	c, err := a.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	st, err := c.Status(ctx, control.Nothing{})
	if err != nil {
		return err
	}
	if check {
		switch {
		case strings.HasPrefix(st.Health, "failing"):
			a.Exit = 2
		case st.Health != "ok":
			a.Exit = 1
		}
	}
	if a.Structured() {
		return a.PrintJSON(st)
	}
	if check {
		return a.Println(a.Clean(a.Out, st.Health))
	}
	var table [][]string
	for _, s := range queue.States() {
		table = append(table, []string{s.String(), fmt.Sprint(st.Jobs[s.String()])})
	}
	if err := a.table([]string{"STATE", "JOBS"}, table); err != nil {
		return err
	}
	zone, _ := time.Now().Zone()
	oldest := "none waits"
	if st.Oldest != 0 {
		oldest = "waits since " + local(st.Oldest) + " " + zone
	}
	lines := [][2]string{
		{"Workers", fmt.Sprintf("%d: %d busy, %d idle", st.Workers.Total, st.Workers.Busy, st.Workers.Idle)},
		{"Oldest", oldest}, {"Enqueued", fmt.Sprint(st.Enqueued)}, {"Ended", fmt.Sprintf("%s in the last minute", Jobs(st.Throughput))},
		{"Database", fmt.Sprintf("%s, %s; outputs %s", st.Database, size(st.Bytes), size(st.Outputs))}, {"Socket", st.Socket},
		{"Service", fmt.Sprintf("%s, pid %d, since %s %s", st.Version, st.PID, local(st.Started), zone)}, {"Health", st.Health},
	}
	if st.Reranking {
		lines = append(lines, [2]string{"Order", "it was changed; the waiting jobs are being ranked anew"})
	}
	return a.rows(9, lines)
}

func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
}
