package access

import (
	"fmt"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// Visibility is how much of a job a user may see.
type Visibility int

// These are the values of Visibility, from least to most. VisibleOutline excludes the environment, the command
// and the output. VisibleWithoutEnv excludes only the values of environment variables. VisibleAll excludes
// nothing.
const (
	VisibleOutline Visibility = iota
	VisibleWithoutEnv
	VisibleAll
)

// VisibilityFor returns how much of a job a user with a right may see. isOwner says whether the job belongs to the
// user.
func VisibilityFor(right control.Right, isOwner bool) Visibility {
	switch {
	case right.Covers(control.RightAdmin), isOwner && right.Covers(control.RightSubmit):
		return VisibleAll
	case right.Covers(control.RightOperate):
		return VisibleWithoutEnv
	}
	return VisibleOutline
}

// hiddenValue replaces the value of an environment variable that is not shown.
const hiddenValue = "***"

// executionSpecFields lists the fields of a spec that VisibleOutline leaves out, because they show what the
// job executes.
var executionSpecFields = []string{"command", "argv", "shell", "stdin", "stdin_file", "env", "env_secret",
	"on_completed", "on_failed", "on_dead", "on_ended"}

// HideJob removes the parts of a job that the visibility does not include.
func HideJob(j *control.Job, s Visibility) {
	if s != VisibleOutline {
		return
	}
	j.Command, j.Argv, j.HookCommands, j.HiddenParts = "", nil, queue.HookCommands{}, []string{"command"}
	if j.Progress != nil { // the text comes from the job's output
		j.Progress = &control.JobProgress{Percent: j.Progress.Percent, ReportedAt: j.Progress.ReportedAt}
	}
	if j.Error != nil { // the error may contain the name of the program
		j.Error = errorWithoutCommand(j.ExitCode, j.Signal, j.Reason)
	}
}

// HideDetail removes the parts of a job that the visibility does not include.
func HideDetail(d *control.JobDetail, s Visibility) {
	HideJob(&d.Job, s)
	switch s {
	case VisibleOutline:
		d.Output, d.Stderr, d.StdoutBytes, d.Result = "", "", 0, nil
		for _, name := range executionSpecFields {
			delete(d.Spec, name)
		}
		for i := range d.History {
			h := &d.History[i]
			if h.Error != nil {
				h.Error = errorWithoutCommand(h.ExitCode, h.Signal, h.Reason)
			}
			h.ResultError = nil
		}
		d.HiddenParts = append(d.HiddenParts, "env", "output")
	case VisibleWithoutEnv:
		d.HiddenParts = append(d.HiddenParts, hideValues(d.Spec, "env", "env_secret")...)
	}
}

// errorWithoutCommand describes how an attempt ended. The text does not reveal what the attempt executed.
func errorWithoutCommand(code *int64, signal *int, reason *string) *string {
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
		sched.Command, sched.Argv, sched.HiddenParts = "", nil, []string{"command"}
	}
}

// HideScheduleDetail removes the parts of a schedule that the visibility does not include.
func HideScheduleDetail(d *control.ScheduleDetail, s Visibility) {
	HideSchedule(&d.Schedule, s)
	switch s {
	case VisibleOutline:
		for _, name := range executionSpecFields {
			delete(d.Spec, name)
		}
		d.HiddenParts = append(d.HiddenParts, "env")
	case VisibleWithoutEnv:
		d.HiddenParts = append(d.HiddenParts, hideValues(d.Spec, "env")...)
	}
}

// hideValues replaces the values in the named fields of a spec by hiddenValue. It returns the names of the
// fields that had values.
func hideValues(spec map[string]any, fields ...string) (hiddenFields []string) {
	for _, field := range fields {
		env, _ := spec[field].(map[string]string)
		for name := range env {
			env[name] = hiddenValue
		}
		if len(env) > 0 {
			hiddenFields = append(hiddenFields, field)
		}
	}
	return hiddenFields
}
