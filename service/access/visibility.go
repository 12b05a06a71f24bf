package access

import (
	"fmt"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// Visibility is how much of a job a user may see.
type Visibility int

// The values of Visibility, from least to most. VisibleOutline hides the command, the environment and the
// output. VisibleWithoutEnv hides only the values of environment variables. VisibleAll hides nothing.
const (
	VisibleOutline Visibility = iota
	VisibleWithoutEnv
	VisibleAll
)

// VisibilityFor returns how much of a job a user with this right may see. isOwner means that the job belongs
// to the user.
func VisibilityFor(right control.Right, isOwner bool) Visibility {
	switch {
	case right.Covers(control.RightAdmin), isOwner && right.Covers(control.RightSubmit):
		return VisibleAll
	case right.Covers(control.RightOperate):
		return VisibleWithoutEnv
	}
	return VisibleOutline
}

// hiddenValuePlaceholder is shown instead of the value of a hidden environment variable.
const hiddenValuePlaceholder = "***"

// executionSpecFields lists the fields of a spec that show what the job executes. VisibleOutline hides them.
var executionSpecFields = []string{"command", "argv", "shell", "stdin", "stdin_file", "env", "env_secret",
	"on_completed", "on_failed", "on_dead", "on_ended"}

// HideJobParts removes the parts of a job that a user with this visibility may not see.
func HideJobParts(j *control.Job, visibility Visibility) {
	if visibility != VisibleOutline {
		return
	}
	j.Command, j.Argv, j.HookCommands, j.HiddenParts = "", nil, queue.HookCommands{}, []string{"command"}
	if j.Progress != nil { // the text comes from the job's output
		j.Progress = &control.JobProgress{Percent: j.Progress.Percent, ReportedAt: j.Progress.ReportedAt}
	}
	if j.Error != nil { // the error may contain the name of the program
		j.Error = attemptErrorWithoutCommand(j.ExitCode, j.Signal, j.Reason)
	}
}

// HideJobDetailParts removes the parts of a job that a user with this visibility may not see.
func HideJobDetailParts(d *control.JobDetail, visibility Visibility) {
	HideJobParts(&d.Job, visibility)
	switch visibility {
	case VisibleOutline:
		d.StdoutTail, d.StderrTail, d.StdoutBytes, d.Result = "", "", 0, nil
		for _, name := range executionSpecFields {
			delete(d.Spec, name)
		}
		for i := range d.History {
			h := &d.History[i]
			if h.Error != nil {
				h.Error = attemptErrorWithoutCommand(h.ExitCode, h.Signal, h.Reason)
			}
			h.ResultError = nil
		}
		d.HiddenParts = append(d.HiddenParts, "env", "output")
	case VisibleWithoutEnv:
		d.HiddenParts = append(d.HiddenParts, hideSpecValues(d.Spec, "env", "env_secret")...)
	}
}

// attemptErrorWithoutCommand describes how an attempt ended. The description contains nothing about what the attempt
// executed.
func attemptErrorWithoutCommand(exitCode *int64, signal *int, reason *string) *string {
	switch {
	case exitCode != nil:
		return new(fmt.Sprintf("exit code %d", *exitCode))
	case signal != nil:
		return new("ended by " + queue.SignalText(*signal))
	}
	return reason
}

// HideScheduleParts removes the parts of a schedule that a user with this visibility may not see.
func HideScheduleParts(sched *control.Schedule, visibility Visibility) {
	if visibility == VisibleOutline {
		sched.Command, sched.Argv, sched.HiddenParts = "", nil, []string{"command"}
	}
}

// HideScheduleDetailParts removes the parts of a schedule that a user with this visibility may not see.
func HideScheduleDetailParts(d *control.ScheduleDetail, visibility Visibility) {
	HideScheduleParts(&d.Schedule, visibility)
	switch visibility {
	case VisibleOutline:
		for _, name := range executionSpecFields {
			delete(d.JobSpec, name)
		}
		d.HiddenParts = append(d.HiddenParts, "env")
	case VisibleWithoutEnv:
		d.HiddenParts = append(d.HiddenParts, hideSpecValues(d.JobSpec, "env")...)
	}
}

// hideSpecValues replaces the values in the named fields of a spec by hiddenValuePlaceholder. hiddenFields lists those
// of the fields that had values.
func hideSpecValues(spec map[string]any, fields ...string) (hiddenFields []string) {
	for _, field := range fields {
		env, _ := spec[field].(map[string]string)
		for name := range env {
			env[name] = hiddenValuePlaceholder
		}
		if len(env) > 0 {
			hiddenFields = append(hiddenFields, field)
		}
	}
	return hiddenFields
}
