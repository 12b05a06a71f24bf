package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

func showVerb(a *App) *cobra.Command {
	var before int
	var s selection
	cmd := &cobra.Command{
		Use: "show ID… | --state STATE …", Short: "Show jobs with their attempts and last lines of output", ValidArgsFunction: a.completeIDs(),
		RunE: func(cmd *cobra.Command, ids []string) error {
			a.missingIsEmpty = true
			c, err := a.reader(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			ids = unique(ids)
			named, err := s.resolved(cmd, c, ids)
			if err != nil {
				return err
			}
			return a.show(cmd.Context(), c, named, before, len(ids) == 1)
		},
	}
	s.add(cmd, "s")
	cmd.Flags().BoolVar(&a.full, "full", false, "with --json: include the environment")
	cmd.Flags().IntVar(&before, "history-before", 0, "show the attempts before attempt `N`")
	return cmd
}

// show prints jobs: one as an object, several as an array. It reports missing jobs after it has
// printed all others.
func (a *App) show(ctx context.Context, c *control.Client, named []control.Job, before int, one bool) error {
	list := newArray(a.Out)
	var missing []control.Refusal
	shown := 0
	for i := range named {
		job, err := c.Show(ctx, control.Show{ID: control.Name(named[i].ID), HistoryBefore: before})
		switch {
		case errors.Is(err, queue.ErrNotFound):
			missing = append(missing, control.Refusal{ID: named[i].ID, Code: queue.CodeNotFound, Message: Message(err)})
			continue
		case err != nil:
			return err
		case a.Quiet:
			err = a.Println(job.ID)
		case a.JSONL || a.JSON && one:
			err = a.PrintJSON(a.printed(job))
		case a.JSON:
			err = list.add(a.printed(job))
		default:
			if shown > 0 {
				err = a.Println("")
			}
			err = errors.Join(err, a.showJob(&job))
		}
		if err != nil {
			return err
		}
		shown++
	}
	var failed error
	for _, line := range refusals(a.cmd, missing) {
		failed = errors.Join(failed, queue.Errorf(queue.CodeNotFound, "%s", line))
	}
	if a.JSON && !a.JSONL && !one && !a.Quiet {
		failed = errors.Join(failed, list.end())
	}
	if len(named) == 0 {
		a.sayNone()
	}
	return failed
}

// printed returns a job for JSON output. It removes the environment unless the flag --full is set.
func (a *App) printed(job control.JobDetail) control.JobDetail {
	if !a.full {
		job.Spec = maps.Clone(job.Spec)
		delete(job.Spec, "env")
		delete(job.Spec, "env_secret")
	}
	return job
}

// shownLines is how many lines of output show prints.
const shownLines = 20

func (a *App) showJob(j *control.JobDetail) error {
	failure, code, signal := "Error", "Exit code", "Signal"
	// These values are from the previous attempt, because the current one has not ended.
	if j.State == queue.Processing.String() {
		failure, code, signal = "Last error", "Last exit", "Last signal"
	}
	rows := [][2]string{
		{"Job", j.ID}, {"Command", Title(&j.Job)}, {"State", Standing(&j.Job)}, {"Reason", waitReason(&j.Job)}, {"Paused", pausedSince(&j.Job)}, {"Progress", a.plain(progressOf(&j.Job))}, {failure, a.plain(orEmpty(j.Error))},
		{code, orEmpty(j.ExitCode)}, {signal, signalOf(&j.Job, "")},
		{"Priority", priorityOf(&j.Job)},
		{"Attempts", attemptsOf(j)}, {"User", j.User}, {"Submitter", j.Submitter}, {"Schedule", j.Schedule}, {"Directory", j.Cwd},
		{"Created", local(j.CreatedAt)}, {"Due", local(j.RunAt)},
		{"Next retry", orNone(j.NextRetryAt)}, {"Expires", orNone(j.ExpiresAt)}, {"Started", orNone(j.StartedAt)}, {"Finished", orNone(j.FinishedAt)},
		{"Waited", span(j.QueueTimeMS)}, {"Ran", ranFor(j.RunTimeMS) + typically(j) + atMostMS(j)}, {"Typical", typicalAlone(j)}, {"Worker", orEmpty(j.WorkerID)}, {"Node", j.Node}, {"Pid", orEmpty(j.PID)},
	}
	rows = append(append(append(rows, limitsOf(j)...), settingsOf(j)...), [][2]string{{"Labels", labels(j.Labels)}, {"Hidden", strings.Join(j.Hidden, ", ")}, {"Removed", removedInput(j.InputRemoved)}}...)
	if err := a.rows(11, rows); err != nil {
		return err
	}
	if len(j.History) > 0 {
		if err := a.showHistory(j); err != nil {
			return err
		}
	}
	result := ""
	if len(j.Result) > 0 && string(j.Result) != "null" {
		result = string(j.Result)
	}
	for _, out := range []struct{ name, text string }{{"Result", result}, {"Output", a.ttyText(j, j.Output)}, {"Error output", a.ttyText(j, j.Stderr)}} {
		if out.text == "" {
			continue
		}
		if err := a.Println("\n" + out.name + ":\n  " + indented(lastLines(a.Clean(a.Out, strings.TrimRight(out.text, "\n")), shownLines), 2)); err != nil {
			return err
		}
	}
	return nil
}

// removedInput describes which input of a job was removed to free space.
func removedInput(fields []string) string {
	if len(fields) == 0 {
		return ""
	}
	return strings.Join(fields, ", ") + " (to free space; this job cannot run again)"
}

// waitReason returns why a job does not run now, in the words of why. It returns "" if the job
// runs, may start or has ended.
func waitReason(j *control.Job) string {
	if j.WaitsFor == nil {
		return ""
	}
	return reasonLine(j.WaitsFor, time.Now())
}

// limitsOf returns one row for each limit of a job, with how much of it the last attempt used.
func limitsOf(j *control.JobDetail) (rows [][2]string) {
	var last control.Attempt
	if len(j.History) > 0 {
		last = j.History[len(j.History)-1]
	}
	limit := func(field string) float64 {
		n, _ := j.Spec[field].(float64) // the field is missing if the job belongs to another user
		return n
	}
	memory, cpus := "at most ", "at most "
	if last.PeakRSS != 0 {
		memory = "peak " + size(last.PeakRSS) + " of "
	}
	if last.RunTimeMS != nil && last.FinishedAt != 0 {
		cpus = fmt.Sprintf("average %.2f of ", float64(last.CPUMS)/float64(max(*last.RunTimeMS, 1)))
	}
	const unknown = " (usage is not measured)"
	// The usage is unknown without control groups and with an older kernel.
	tasks, unmeasured := "at most ", " (usage is unknown)"
	if last.PeakTasks != 0 {
		tasks, unmeasured = fmt.Sprintf("peak %d of ", last.PeakTasks), ""
	}
	for _, f := range []struct{ field, name, before, after string }{
		{"memory", "Memory", memory, ""}, {"cpus", "Processors", cpus, ""}, {"tasks", "Tasks", tasks, unmeasured}, {"nofile", "Open files", "at most ", unknown}, {"nice", "Nice", "", ""},
	} {
		text := strconv.FormatFloat(limit(f.field), 'f', -1, 64)
		if f.field == "memory" {
			text = size(int64(limit(f.field)))
		}
		if limit(f.field) != 0 {
			rows = append(rows, [2]string{f.name, f.before + text + f.after})
		}
	}
	return rows
}

// settingsOf returns the settings of a job that differ from the defaults and that no other row shows.
func settingsOf(j *control.JobDetail) (rows [][2]string) {
	add := func(name, field, before, after string, usual ...string) {
		text := specText(j.Spec[field])
		if text == "" || slices.Contains(usual, text) {
			return
		}
		if n, ok := j.Spec[field].(float64); ok && field == "output_limit" {
			text = size(int64(n))
		}
		rows = append(rows, [2]string{name, before + text + after})
	}
	if j.RunTimeMS == nil { // if the job has run, the row "Ran" already shows the timeout
		add("Timeout", "timeout", "", "", "0s")
	}
	add("Idle", "idle_timeout", "at most ", " without output", "0s")
	add("Kill after", "kill_after", "", "", "10s")
	add("Queue", "queue", "", "", "default")
	add("Depends on", "depends_on", "", "")
	add("Lock", "lock", "", "")
	add("Rate", "rate_limit", "", "")
	add("Runs on", "on", "", "")
	add("Resources", "resources", "", "")
	add("Unique", "unique", "", "")
	add("On success", "on_completed", "", "")
	add("On failure", "on_failed", "", "")
	add("On dead", "on_dead", "", "")
	add("On end", "on_ended", "", "")
	add("Ok codes", "ok_codes", "", "", "0")
	add("No retry", "no_retry_codes", "after exit code ", "")
	add("Deferred", "defer_codes", "after exit code ", "")
	add("On lost", "on_lost", "", "", "retry")
	add("Max output", "output_limit", "", " per stream", fmt.Sprint(1<<20))
	add("Stdin", "stdin_file", "", "")
	if j.Spec["no_new_privileges"] == true {
		rows = append(rows, [2]string{"Privileges", "cannot be gained (sudo does not work)"})
	}
	add("Shell", "shell", "", "", "/bin/sh -c", "cmd.exe /C")
	var backoff []string
	for _, f := range []struct{ field, before string }{{"backoff_strategy", ""}, {"backoff_base", "base "}, {"backoff_max", "at most "}, {"jitter", "jitter "}} {
		if text := specText(j.Spec[f.field]); text != "" {
			backoff = append(backoff, f.before+text)
		}
	}
	return append(rows, [2]string{"Backoff", strings.Join(backoff, ", ")})
}

// specText formats the value of a spec's field as decoded from JSON. It returns "" if the field is
// not set.
func specText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case []any:
		texts := make([]string, len(v))
		for i := range v {
			texts[i] = specText(v[i])
		}
		return strings.Join(texts, ", ")
	case map[string]any:
		texts := make([]string, 0, len(v))
		for _, name := range slices.Sorted(maps.Keys(v)) {
			texts = append(texts, name+"="+specText(v[name]))
		}
		return strings.Join(texts, ", ")
	}
	return ""
}

// atMostMS formats a job's timeout, to be shown next to its run time.
func atMostMS(j *control.JobDetail) string {
	if j.TimeoutMS == 0 || j.RunTimeMS == nil {
		return ""
	}
	return ", timeout " + span(j.TimeoutMS)
}

// typically formats the typical run time of a running job, to be shown next to its run time.
func typically(j *control.JobDetail) string {
	if j.UsualRunTimeMS == nil || j.State != queue.Processing.String() {
		return ""
	}
	return ", typically " + took(j.UsualRunTimeMS)
}

// typicalAlone formats the typical run time of a job that has not run.
func typicalAlone(j *control.JobDetail) string {
	if j.RunTimeMS != nil {
		return ""
	}
	return took(j.UsualRunTimeMS)
}

// attemptsOf returns how many attempts of its maximum a job has used. It adds how many attempts did
// not count, for example because they were interrupted.
func attemptsOf(j *control.JobDetail) string {
	text := AttemptsText(&j.Job)
	before := j.HistoryTotal - j.Attempts
	if j.State == queue.Processing.String() {
		before-- // the running attempt is not yet in j.Attempts, but it will count
	}
	if before > 0 {
		text += fmt.Sprintf(" (+%d not counted)", before)
	}
	return text
}

// Standing returns a job's state. It adds the reason if the reason says more than the state.
func Standing(j *control.Job) string {
	if j.PausedAt != 0 {
		return stateText(j)
	}
	// The reason of a running job is from its previous attempt, so it is not shown.
	if j.Reason == nil || *j.Reason == j.State || j.State == queue.Processing.String() {
		return j.State
	}
	return j.State + " (" + *j.Reason + ")"
}

// showHistory prints the attempts of a reply, and how to see earlier ones.
func (a *App) showHistory(j *control.JobDetail) error {
	if err := a.Println(""); err != nil {
		return err
	}
	if first := j.History[0].Attempt; first > 1 {
		if err := a.Println(fmt.Sprintf("%d attempts in total; show earlier ones with: --history-before %d", j.HistoryTotal, first)); err != nil {
			return err
		}
	}
	var table [][]string
	for _, h := range j.History {
		ended := orDash(h.ExitCode)
		switch {
		case h.Signal != nil:
			ended = queue.SignalName(*h.Signal)
		case h.FinishedAt == 0:
			ended = "running"
		}
		node := ""
		if j.Node != "" { // j.Node is empty if the queue has only one node
			node = h.Node
		}
		table = append(table, []string{fmt.Sprint(h.Attempt), local(h.StartedAt), ranFor(h.RunTimeMS), ended, h.Worker, node, remarks(&h, j.Spec["allow_background"] == true)})
	}
	return a.table(withoutPlain([]string{"ATTEMPT", "STARTED" + zonePlaceholder, "RAN", "EXIT", "WORKER", "NODE", "ERROR"}, table))
}

// remarks returns the error of an attempt, the error of its result, and how many leftover processes
// were stopped. A background job may leave processes running.
func remarks(h *control.Attempt, background bool) string {
	text := orEmpty(h.Error)
	if h.ResultError != nil {
		text += "; result not stored: " + *h.ResultError
	}
	if h.Leftovers > 0 {
		text += "; leftover processes stopped: " + strconv.Itoa(h.Leftovers)
		if h.ExitCode != nil && !background {
			text += " (--allow-background keeps them running)"
		}
	}
	return strings.TrimPrefix(text, "; ")
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
	lines := strings.Split(lineBreaks.Replace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n < 1<<10:
		return plural(int(n), "byte")
	}
	return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
}
