package control

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// These are limits for parameter values. Other limits are in params.go and in package queue.
const (
	MaxJobsPerPage          = 1000           // maximum number of jobs in a page of a list
	MaxJobsPerScreenSection = 100            // maximum number of jobs in each section of a screen
	MaxWorkers              = 4096           // maximum number of workers of a service
	MaxScheduleJitter       = 24 * time.Hour // maximum jitter of a schedule
	maxCleanupDays          = 36500          // maximum age in days, for the method cleanup
	maxAttemptNumber        = 1<<31 - 1      // highest number of an attempt
	maxEventSeq             = 1e18           // highest number of an event
	maxQueueWeight          = 1000           // maximum weight of a queue
	maxJobCountParam        = 1e9            // maximum value of a parameter that is a number of jobs
	maxByteCountParam       = 1 << 50        // maximum value of a parameter that is a number of bytes
	MaxScheduleNameBytes    = 100            // maximum length of a schedule's name in bytes
)

// quoteNames puts quotes around each of the names, which are separated by spaces, and joins them with commas.
func quoteNames(spaceSeparatedNames string) string {
	return `"` + strings.Join(strings.Fields(spaceSeparatedNames), `", "`) + `"`
}

func numberRangeConstraint(low, high float64) queue.Constraint {
	return queue.Constraint{NumberRange: &queue.NumberRange{Min: low, Max: high}}
}

// constraintsByRule returns the constraints that a parameter's tag "rule" can name. It is a function and not a
// variable, because the initializer of a variable would make the linker include the glob parser in the client.
func constraintsByRule() map[string]queue.Constraint {
	states := append(queue.StateNames(queue.States()), "waiting", "done")
	ended := slices.DeleteFunc(slices.Clone(queue.States()), func(s queue.State) bool { return !s.HasEnded() })
	var eventKinds []string
	for _, k := range queue.EventKinds() {
		eventKinds = append(eventKinds, string(k))
	}
	return map[string]queue.Constraint{
		"nonEmpty": {NotEmpty: true},
		"name":     {NotEmpty: true, MaxBytes: maxUserNameBytes}, // name of a user, a node or a schedule
		"queue":    {TextFormat: queue.QueueNameFormat},
		"label":    {NotEmpty: true, MaxBytes: queue.MaxLabelBytes},
		"glob":     {NotEmpty: true, TextFormat: queue.GlobFormat, MaxBytes: queue.MaxGlobBytes},
		"key":      {MaxBytes: queue.MaxKeyBytes},
		"batchKey": {NotEmpty: true, MaxBytes: queue.MaxKeyBytes}, // "" counts as given, so it is not allowed
		"reason": {MaxBytes: queue.MaxLabelBytes, TextFormat: patternFormat(`^[^\x00-\x1f\x7f-\x9f]*$`,
			"one line of text; replace line breaks, tabs and other control characters with spaces")},
		"typed": {MaxBytes: MaxTypedBytes},
		"setting": {NotEmpty: true, MaxBytes: MaxSettingValueBytes,
			ErrorMessageSuffix: "; use config.unset to restore the default"},
		"signal": {TextFormat: signalFormat()},
		"sharedKey": {TextFormat: patternFormat(`^@[A-Za-z0-9][A-Za-z0-9._@/-]{0,127}$`,
			"a shared key; write @, then 1 to 128 characters from A-Z a-z 0-9 . _ @ / -, the first a letter or digit")},
		"rate": {TextFormat: patternFormat(`^([1-9][0-9]{0,3}|10000)/[smhd]$`,
			"a rate; write N/PERIOD with N from 1 to 10000 and a period of s, m, h or d, such as 10/m")},
		"scheduleName": {TextFormat: patternFormat(
			fmt.Sprintf(`^[A-Za-z0-9][A-Za-z0-9._@/-]{0,%d}$`, MaxScheduleNameBytes-1),
			"a valid schedule name; use 1 to 100 characters from A-Z a-z 0-9 . _ @ / -, the first a letter or digit")},
		"jobCursor": {TextFormat: patternFormat(`^[1-9][0-9]{0,17}$`,
			`a cursor; use field "next" of the previous answer`)},
		"gateCursor":     {TextFormat: gateCursorFormat, MaxBytes: maxGateCursorBytes},
		"scheduleCursor": {MaxBytes: maxUserNameBytes},

		"jobs":           {MaxItems: queue.MaxJobsPerRequest},
		"selectedIDs":    {MinItems: 1, MaxItems: MaxJobIDs},
		"waitIDs":        {MinItems: 1, MaxItems: MaxWaitOrFollowJobIDs},
		"eventIDs":       {MaxItems: MaxWaitOrFollowJobIDs},
		"labels":         {MaxItems: queue.MaxLabels},
		"selectedLabels": {MinItems: 1, MaxItems: queue.MaxLabels},
		"states":         {Enum: states, MaxItems: MaxTextListItems},
		"selectedStates": {Enum: states, MinItems: 1, MaxItems: MaxTextListItems},
		"endedStates":    {Enum: append(queue.StateNames(ended), "done"), MaxItems: MaxTextListItems},
		"eventKinds":     {Enum: eventKinds, MaxItems: MaxTextListItems},
		"grain":          {Enum: []string{"minute", "hour", "day"}},
		"gateRule":       {Enum: []string{"lock", "rate"}},
		"catchUp":        {Enum: []string{"none", "one", "all"}},
		"overlap":        {Enum: []string{"skip", "queue", "replace"}},

		"duration":         numberRangeConstraint(0, queue.MaxDuration.Seconds()),
		"positiveDuration": {NumberRange: &queue.NumberRange{Min: 0, Max: queue.MaxDuration.Seconds(), ExclusiveMin: true}},
		"jitter":           numberRangeConstraint(0, MaxScheduleJitter.Seconds()),
		"pageRows":         numberRangeConstraint(1, MaxJobsPerPage),
		"screenRows":       numberRangeConstraint(1, MaxJobsPerScreenSection),
		"simulatedJobs":    numberRangeConstraint(1, MaxSimulatedJobs),
		"attempt":          numberRangeConstraint(1, maxAttemptNumber),
		"outputLines":      numberRangeConstraint(0, MaxOutputLines),
		"terminalSize":     numberRangeConstraint(1, maxTerminalSize),
		"concurrency":      numberRangeConstraint(0, queue.MaxDemandAmount),
		"lock":             numberRangeConstraint(1, queue.MaxDemandAmount),
		"weight":           numberRangeConstraint(1, maxQueueWeight),
		"jobCount":         numberRangeConstraint(0, maxJobCountParam),
		"bytes":            numberRangeConstraint(0, maxByteCountParam),
		"workers":          numberRangeConstraint(0, MaxWorkers),
		"someWorkers":      numberRangeConstraint(1, MaxWorkers),
		"eventSeq":         numberRangeConstraint(0, maxEventSeq),
		"days":             numberRangeConstraint(0, maxCleanupDays),
	}
}

// CheckParamText returns an error about a parameter if its text violates the constraint that the tag "rule" names. The
// service makes the same check.
func CheckParamText(rule, param, text string) error {
	c := constraintsByRule()[rule]
	return c.CheckText(param, text)
}

// gateCursorFormat is the format of the cursor of a list of gates.
var gateCursorFormat = &queue.TextFormat{Pattern: `^(0|-?[1-9][0-9]{0,9}) ([1-9][0-9]?|100) [\s\S]+$`,
	IsValid: isGateCursor, Description: `a cursor from gate.list; use field "next" of its answer`}

// patternFormat returns the format of the texts that match a regular expression.
func patternFormat(pattern, description string) *queue.TextFormat {
	return &queue.TextFormat{Pattern: pattern, IsValid: regexp.MustCompile(pattern).MatchString, Description: description}
}

func signalFormat() *queue.TextFormat {
	return &queue.TextFormat{Pattern: queue.SignalPattern(), CheckText: func(text string) error {
		_, err := queue.ParseSignal(text)
		return err
	}}
}

func isGateCursor(s string) bool {
	at, err := (&GateListParams{Cursor: s}).DecodeCursor()
	return err == nil && s == EncodeGateCursor(at)
}

// fieldsWithoutQueueDefault lists the job fields for which a queue cannot have a default. Such a field says what
// is executed or as which account, or makes sense only for a single job.
var fieldsWithoutQueueDefault = []string{
	"id", "queue", "command", "argv", "env", "env_pass", "env_secret", "cwd", "umask", "shell", "stdin", "stdin_file",
	"user", "tty", "on_completed", "on_failed", "on_dead", "on_ended", "depends_on",
}

// CheckFieldAllowsQueueDefault returns an error if a queue cannot have a default for the job field jobField.
func CheckFieldAllowsQueueDefault(jobField string) error {
	if slices.Contains(fieldsWithoutQueueDefault, jobField) {
		return queue.InvalidFieldError("default", `field %q cannot be a queue default; set it on each job`, jobField)
	}
	return nil
}

// jobFieldPolicies returns the sets of job fields that parameters accept, by the name that the tag "rule" of a
// parameter contains.
func jobFieldPolicies() map[string]*jobFieldPolicy {
	return map[string]*jobFieldPolicy{
		"editedFields":  {excludedFields: []string{queue.UneditableField}, editsExistingJobs: true},
		"queueDefaults": {excludedFields: fieldsWithoutQueueDefault},
	}
}

// These are names of value classes; see valueClass.
const (
	// classAbovePartialBatchLimit contains the lists with more than MaxJobsPerPartialBatch jobs, which only the last
	// request of a batch may contain.
	classAbovePartialBatchLimit = "jobs:many"
	// classJobsWithPriority is the class of lists of jobs in which a job sets a priority. Such a list cannot be combined
	// with the parameter "next".
	classJobsWithPriority = "jobs:priority"
	// classAuditEvents contains the values of the parameter "event" that include the kind "audit".
	classAuditEvents = "event:audit"
)

func specHasPriority(s queue.Spec) bool { return s.Priority != nil }

// valueClassesByRule returns the value classes of parameters, by the name that the tag "rule" of a parameter contains.
func valueClassesByRule() map[string][]valueClass {
	many := func(v reflect.Value) bool { return v.Len() > MaxJobsPerPartialBatch }
	withPriority := func(v reflect.Value) bool {
		return slices.ContainsFunc(v.Interface().([]queue.Spec), specHasPriority)
	}
	audit := func(v reflect.Value) bool { return slices.Contains(v.Interface().(TextList), string(queue.EventAudit)) }
	auditSchema := schema{"const": string(queue.EventAudit)}
	jobWithPriority := schema{"required": []string{"priority"},
		"properties": schema{"priority": schemaOfJSONTypes("integer")}}
	return map[string][]valueClass{
		"jobs": {
			{classAbovePartialBatchLimit, many, schema{"minItems": MaxJobsPerPartialBatch + 1}},
			{classJobsWithPriority, withPriority, schema{"contains": jobWithPriority}},
		},
		"eventKinds": {{classAuditEvents, audit,
			schema{"anyOf": []schema{auditSchema, {"type": "array", "contains": auditSchema}}}}},
	}
}

// paramConditionRows returns the conditions on parameters. They are checked in this order.
func paramConditionRows() []paramCondition {
	const (
		selectorParams       = "state failed label queue batch user older_than id_glob"
		queueSettings        = "concurrency weight max_pending default retention retention_max_jobs retention_output"
		noJobsMessage        = "no jobs given; only the last request of a batch may leave them out"
		twoPrioritiesMessage = `cannot be combined with field "priority"; use one of them`
	)
	insteadOf := func(name string) string {
		return fmt.Sprintf("cannot be combined with parameter %q; use one of them", name)
	}
	return []paramCondition{
		{"EnqueueParams", forbidBothSets, "next", "priority", twoPrioritiesMessage},
		{"EnqueueBatchParams", requireSetA, "commit batch", "",
			`must be true if the batch is a single request; to send several requests, set parameter "batch"`},
		{"EnqueueBatchParams", requireSetA, "jobs commit abort", "", noJobsMessage},
		{"EnqueueBatchParams", requireSetA, "jobs batch", "", noJobsMessage},
		{"EnqueueBatchParams", requireSetBWithA, classAbovePartialBatchLimit, "commit",
			fmt.Sprintf("too many jobs; the maximum is %d, except in the last request of a batch",
				MaxJobsPerPartialBatch)},
		{"EnqueueBatchParams", requireSetBWithA, "abort", "batch",
			`works only with parameter "batch"; name the batch to discard`},
		{"EnqueueBatchParams", forbidBothSets, "abort", "commit jobs",
			`cannot be combined with parameter "commit" or "jobs"; leave them out`},
		{"EnqueueBatchParams", requireSetBWithA, "key", "commit",
			`works only with parameter "commit"; give the key only in the last request of a batch`},
		{"EnqueueBatchParams", forbidBothSets, "next", classJobsWithPriority, twoPrioritiesMessage},
		{"JobSelection PauseSelection JobKillParams JobEditParams JobRetryParams JobRemoveParams", requireExactlyOneSet,
			"ids id", "all " +
				selectorParams,
			`no jobs given; set parameter "id", "ids" or "all", or select jobs with ` + quoteNames(selectorParams)},
		{"PauseSelection", forbidBothSets, "all", selectorParams,
			"selects all jobs; leave out the other parameters that select jobs"},
		{"DeadJobRetryParams", requireExactlyOneSet, "ids id", "all batch",
			`no jobs given; set parameter "id", "ids", "batch" or "all"`},
		{"JobClearParams", requireSetA, "yes dry_run", "",
			"must be true to remove the jobs permanently, with their history; use dry_run to count them"},
		{"JobWaitParams", requireSetA, "ids id", "", `no jobs given; set parameter "id" or "ids"`},
		{"JobOutputParams", forbidBothSets, "until", "follow", `works only for past output; leave out parameter "follow"`},
		{"JobOutputParams", requireSetBWithA, "all", "follow", `works only with parameter "follow"; set both`},
		{"JobOutputParams", forbidBothSets, "all", "attempt n",
			`prints all output from the first attempt on; leave out parameters "attempt" and "n"`},
		{"AttachTerminalParams", requireSetBWithA, "rows", "cols",
			`works only with parameter "cols"; give both to change the size`},
		{"AttachTerminalParams", requireSetBWithA, "cols", "rows",
			`works only with parameter "rows"; give both to change the size`},
		{"AttachTerminalParams", forbidBothSets, "text", "base64", insteadOf("base64")},
		{"ConfigureQueueParams", requireSetA, queueSettings, "",
			"no changes given; set at least one of the parameters " + quoteNames(queueSettings)},
		{"QueuePauseParams QueueResumeParams", requireExactlyOneSet, "name", "all",
			`no queue given; set parameter "name", or set parameter "all" to true`},
		{"QueuePauseParams", forbidBothSets, "for", "until", insteadOf("until")},
		{"QueuePauseParams", forbidBothSets, "freeze", "until for",
			`a pause that freezes jobs lasts until the queue is resumed; leave out parameters "until" and "for"`},
		{"StatsParams", forbidBothSets, "ever", "queue since until by",
			`covers all queues and all times; leave out parameters "queue", "since", "until" and "by"`},
		{"SetGateRuleParams", requireExactlyOneSet, "lock", "rate unset",
			`no rule given; set parameter "lock", "rate" or "unset"`},
		{"SetGateRuleParams", forbidBothSets, "rate", "unset", insteadOf("unset")},
		{"WorkerStopParams", forbidBothSets, "count", "all", insteadOf("all")},
		{"NodeDrainParams DrainParams", forbidBothSets, "wait", "off", insteadOf("off")},
		{"EventsParams", forbidBothSets, "until", "follow", `works only for past events; leave out parameter "follow"`},
		{"EventsParams", requireSetBWithA, classAuditEvents, "audit",
			`the kind "audit" works only with parameter "audit"; set both (admins only)`},
	}
}
