package present

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// removedInputText says that the service has removed inputs of a job to free space. removedFields are the names of the
// job's fields that contained these inputs.
func removedInputText(removedFields []string) string {
	if len(removedFields) == 0 {
		return ""
	}
	return strings.Join(removedFields, ", ") + " (to free space; this job cannot run again)"
}

// WaitReason returns why a job does not run now, with the same text as "queuectl why". It returns "" if the job
// runs, waits for nothing or has ended.
func WaitReason(j *control.Job) string {
	if j.MainWaitReason == nil {
		return ""
	}
	return WaitReasonLine(j.MainWaitReason, time.Now())
}

// JobDetailRows returns the name and the value of each property of a job, except its state, its error and its command.
// The value is "" if it is unknown.
func JobDetailRows(j *control.JobDetail) [][2]string {
	ran, typical := runTimeTexts(j)
	rows := [][2]string{
		{"Priority", priorityText(&j.Job, "%[3]d (set to %[1]d, plus %[2]d for waiting time)")},
		{"Attempts", usedAttemptsText(j)}, {"User", j.User}, {"Submitter", j.Submitter}, {"Schedule", j.Schedule},
		{"Directory", j.Cwd}, {"Created", LocalTimeText(j.CreatedAt)}, {"Due", LocalTimeText(j.RunAt)},
		{"Next retry", localTimeOrEmpty(j.NextRetryAt)}, {"Expires", localTimeOrEmpty(j.ExpiresAt)},
		{"Started", localTimeOrEmpty(j.StartedAt)}, {"Finished", localTimeOrEmpty(j.FinishedAt)},
		{"Waited", MillisecondsText(j.QueueTimeMS)}, {"Ran", ran},
		{"Typical", typical}, {"Worker", EmptyIfNil(j.WorkerID)}, {"Node", j.Node}, {"Pid", EmptyIfNil(j.PID)},
	}
	rows = append(append(rows, jobLimitRows(j)...), jobSettingRows(j)...)
	return append(rows, [][2]string{{"Labels", LabelsText(j.Labels)}, {"Hidden", strings.Join(j.HiddenParts, ", ")},
		{"Removed", removedInputText(j.RemovedInputParts)}}...)
}

// jobLimitRows returns one row for each limit of a job. The row also says how much of the limit the last attempt used,
// if the service knows that.
func jobLimitRows(j *control.JobDetail) (rows [][2]string) {
	var lastAttempt control.Attempt
	if len(j.History) > 0 {
		lastAttempt = j.History[len(j.History)-1]
	}
	// The usage is unknown if the service could not measure it: without control groups, and on older kernels.
	memory, cpus, tasks := "at most %s", "at most %s", "at most %s (usage is unknown)"
	if lastAttempt.PeakRSSBytes != 0 {
		memory = "peak " + SizeText(lastAttempt.PeakRSSBytes) + " of %s"
	}
	if lastAttempt.RunTimeMS != nil && lastAttempt.FinishedAt != 0 {
		cpus = fmt.Sprintf("average %.2f of ", float64(lastAttempt.CPUTimeMS)/float64(max(*lastAttempt.RunTimeMS, 1))) + "%s"
	}
	if lastAttempt.PeakTasks != 0 {
		tasks = fmt.Sprintf("peak %d of ", lastAttempt.PeakTasks) + "%s"
	}
	for _, f := range []struct{ field, name, format string }{
		{"memory", "Memory", memory}, {"cpus", "Processors", cpus}, {"tasks", "Tasks", tasks},
		{"nofile", "Open files", "at most %s (usage is not measured)"}, {"nice", "Nice", "%s"},
	} {
		limit, _ := j.Spec[f.field].(float64) // the field is missing if the caller may not see the job's limits
		text := strconv.FormatFloat(limit, 'f', -1, 64)
		if f.field == "memory" {
			text = SizeText(int64(limit))
		}
		if limit != 0 {
			rows = append(rows, [2]string{f.name, fmt.Sprintf(f.format, text)})
		}
	}
	return rows
}

// dependenciesText returns the dependencies of a job with a note at each removed parent. The service names a removed
// parent by its number, such as #3. Other parents have an id, which cannot begin with #.
func dependenciesText(namesWithCommas string) string {
	names := strings.Split(namesWithCommas, ", ")
	for i, name := range names {
		if strings.HasPrefix(name, "#") {
			names[i] += " (removed)"
		}
	}
	return strings.Join(names, ", ")
}

// jobSettingRows returns the settings of a job that differ from the defaults and that no other row shows.
func jobSettingRows(j *control.JobDetail) (rows [][2]string) {
	add := func(name, field, format string, defaultTexts ...string) {
		text := jsonValueText(j.Spec[field], ", ")
		if text == "" || slices.Contains(defaultTexts, text) {
			return
		}
		if n, ok := j.Spec[field].(float64); ok && field == "output_limit" {
			text = SizeText(int64(n))
		}
		if field == "depends_on" {
			text = dependenciesText(text)
		}
		rows = append(rows, [2]string{name, fmt.Sprintf(format, text)})
	}
	if j.RunTimeMS == nil { // otherwise the row "Ran" contains the timeout
		add("Timeout", "timeout", "%s", "0s")
	}
	add("Idle", "idle_timeout", "at most %s without output", "0s")
	add("Kill after", "kill_after", "%s", "10s")
	add("Queue", "queue", "%s", "default")
	add("Depends on", "depends_on", "%s")
	add("Lock", "lock", "%s")
	add("Rate", "rate_limit", "%s")
	add("Runs on", "on", "%s")
	add("Resources", "resources", "%s")
	add("Unique", "unique", "%s")
	add("On success", "on_completed", "%s")
	add("On failure", "on_failed", "%s")
	add("On dead", "on_dead", "%s")
	add("On end", "on_ended", "%s")
	add("Ok codes", "ok_codes", "%s", "0")
	add("No retry", "no_retry_codes", "if the exit code is %s")
	add("Deferred", "defer_codes", "if the exit code is %s; the attempt does not count")
	add("On lost", "on_lost", "%s", "retry")
	add("Max output", "output_limit", "%s per stream", fmt.Sprint(1<<20))
	add("Stdin", "stdin_file", "%s")
	if j.Spec["no_new_privileges"] == true {
		rows = append(rows, [2]string{"Privileges", "cannot be gained (sudo does not work)"})
	}
	add("Shell", "shell", "%s", "/bin/sh -c", "cmd.exe /C")
	var backoff []string
	for _, f := range []struct{ field, prefix string }{{"backoff_strategy", ""}, {"backoff_base", "base "},
		{"backoff_max", "at most "}, {"jitter", "jitter "}} {
		if text := jsonValueText(j.Spec[f.field], ", "); text != "" {
			backoff = append(backoff, f.prefix+text)
		}
	}
	return append(rows, [2]string{"Backoff", strings.Join(backoff, ", ")})
}

// jsonValueText formats a value that was decoded from JSON. separator is the text between the entries of a list
// or map. jsonValueText returns "" for nil.
func jsonValueText(v any, separator string) string {
	var texts []string
	switch v := v.(type) {
	case nil:
		return ""
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case []any:
		for _, entry := range v {
			texts = append(texts, jsonValueText(entry, separator))
		}
		return strings.Join(texts, separator)
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			texts = append(texts, name+"="+jsonValueText(v[name], separator))
		}
		return strings.Join(texts, separator)
	}
	return fmt.Sprint(v)
}

// runTimeTexts returns how long a job has run, with its timeout. If the job is running, runTimeText also contains the
// typical run time of the job's command. If the job has not run, runTimeText is "", and typicalRunTimeText is the
// typical run time.
func runTimeTexts(j *control.JobDetail) (runTimeText, typicalRunTimeText string) {
	if j.RunTimeMS == nil {
		return "", DurationText(j.TypicalRuntimeMS)
	}
	runTimeText = RunTimeText(j.RunTimeMS)
	if j.TypicalRuntimeMS != nil && j.State == queue.Processing.String() {
		runTimeText += ", typically " + DurationText(j.TypicalRuntimeMS)
	}
	if j.TimeoutMS != 0 {
		runTimeText += ", timeout " + MillisecondsText(j.TimeoutMS)
	}
	return runTimeText, ""
}

// AttemptRemarks returns remarks on an attempt: its error, the error of its result, and how many leftover processes
// were stopped. If the command exited by itself, AttemptRemarks also suggests the flag --allow-background, unless the
// job already has that flag.
func AttemptRemarks(attempt *control.Attempt, allowsBackground bool) string {
	text := EmptyIfNil(attempt.Error)
	if attempt.ResultError != nil {
		text += "; the job's JSON result was not stored: " + *attempt.ResultError
	}
	if attempt.LeftoverProcesses > 0 {
		text += "; leftover processes stopped: " + strconv.Itoa(attempt.LeftoverProcesses)
		if attempt.ExitCode != nil && !allowsBackground {
			text += " (--allow-background keeps them running)"
		}
	}
	return strings.TrimPrefix(text, "; ")
}
