package cli

import (
	"fmt"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// MaxNamedFailures is the highest number of failed jobs that a progress display names.
const MaxNamedFailures = 100

// PrintFailure prints that a job did not complete, and why.
func (a *App) PrintFailure(j *control.Job) {
	a.Say("%s (%s)", termtext.OneLine(a.EscapeFor(a.Stderr, present.FailureText(j))),
		termtext.Truncate(termtext.OneLine(a.EscapeFor(a.Stderr, present.JobTitle(j))), 60))
}

// printJobEnd prints how a job ended. About a completed job it prints only on a terminal. About any other
// job it always prints, and adds the next step. The parameter others is the number of further failed
// jobs that no line names.
func (a *App) printJobEnd(j *control.Job, others int) {
	switch {
	case j.State == queue.Completed.String():
		a.PrintInfo("job %s is completed", j.ID)
		return
	case a.Quiet:
		return
	}
	text := termtext.OneLine(a.EscapeFor(a.Stderr, present.FailureText(j)))
	if j.State != "removed" {
		text += "; details: queuectl show " + j.ID
	}
	if others > 0 {
		text += fmt.Sprintf("; %d more failed", others)
	}
	a.Say("%s", text)
}

// MoreFailuresText returns how to list the failures that were not named, or "" if all were named. The
// parameter jobs says which jobs failed.
func MoreFailuresText(bad int, jobs, list string) string {
	if bad > MaxNamedFailures {
		return fmt.Sprintf("; only %d of the %d %s are named above; list them all with: %s", MaxNamedFailures, bad, jobs,
			list)
	}
	return ""
}
