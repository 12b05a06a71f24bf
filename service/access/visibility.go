package access

import (
	"fmt"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// Visibility is how much of a job a user may see.
type Visibility int

// The values of Visibility. VisibleOutline is everything except the environment, the command and the
// output. VisibleInside is everything except the values of environment variables. VisibleWhole is everything.
const (
	VisibleOutline Visibility = iota
	VisibleInside
	VisibleWhole
)

// VisibilityFor returns how much of a job a user with a right may see. own says whether it is the user's own
// job.
func VisibilityFor(have control.Right, own bool) Visibility {
	switch {
	case have.Covers(control.Admin), own && have.Covers(control.Submit):
		return VisibleWhole
	case have.Covers(control.Operate):
		return VisibleInside
	}
	return VisibleOutline
}

// hiddenValue replaces the value of an environment variable that is not shown.
const hiddenValue = "***"

// nestedParams lists the fields of a spec that VisibleOutline leaves out, because they show what the
// job executes.
var nestedParams = []string{"command", "argv", "shell", "stdin", "stdin_file", "env", "env_secret", "on_completed",
	"on_failed", "on_dead", "on_ended"}

// HideJob removes the parts of a job that the visibility does not include.
func HideJob(j *control.Job, s Visibility) {
	if s != VisibleOutline {
		return
	}
	j.Command, j.Argv, j.HookLines, j.Hidden = "", nil, queue.HookLines{}, []string{"command"}
	if j.Progress != nil { // the text is output
		j.Progress = &control.JobProgress{Percent: j.Progress.Percent, ReportedAt: j.Progress.ReportedAt}
	}
	if j.Error != nil { // the error may contain the name of the program
		j.Error = plainError(j.ExitCode, j.Signal, j.Reason)
	}
}

// HideDetail removes the parts of a job that the visibility does not include.
func HideDetail(d *control.JobDetail, s Visibility) {
	HideJob(&d.Job, s)
	switch s {
	case VisibleOutline:
		d.Output, d.Stderr, d.StdoutBytes, d.Result = "", "", 0, nil
		for _, name := range nestedParams {
			delete(d.Spec, name)
		}
		for i := range d.History {
			h := &d.History[i]
			if h.Error != nil {
				h.Error = plainError(h.ExitCode, h.Signal, h.Reason)
			}
			h.ResultError = nil
		}
		d.Hidden = append(d.Hidden, "env", "output")
	case VisibleInside:
		d.Hidden = append(d.Hidden, hideValues(d.Spec, "env", "env_secret")...)
	}
}

// plainError describes how an attempt ended without describing what it executed.
func plainError(code *int64, signal *int, reason *string) *string {
	switch {
	case code != nil:
		return new(fmt.Sprintf("exit code %d", *code))
	case signal != nil:
		return new("ended by " + queue.SignalText(*signal))
	}
	return reason
}

// HideSchedule removes the parts of a schedule that the visibility does not include.
func HideSchedule(sched *control.Schedule, s Visibility) {
	if s == VisibleOutline {
		sched.Command, sched.Argv, sched.Hidden = "", nil, []string{"command"}
	}
}

// HideScheduleDetail removes the parts of a schedule that the visibility does not include.
func HideScheduleDetail(d *control.ScheduleDetail, s Visibility) {
	HideSchedule(&d.Schedule, s)
	switch s {
	case VisibleOutline:
		for _, name := range nestedParams {
			delete(d.Spec, name)
		}
		d.Hidden = append(d.Hidden, "env")
	case VisibleInside:
		d.Hidden = append(d.Hidden, hideValues(d.Spec, "env")...)
	}
}

// hideValues hides the values in these fields of a spec. It returns the fields that have any.
func hideValues(spec map[string]any, fields ...string) (hidden []string) {
	for _, field := range fields {
		env, _ := spec[field].(map[string]string)
		for name := range env {
			env[name] = hiddenValue
		}
		if len(env) > 0 {
			hidden = append(hidden, field)
		}
	}
	return hidden
}
