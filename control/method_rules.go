package control

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Upper limits for parameter values. Further limits are in params.go and in package queue.
const (
	MaxPageRows          = 1000           // maximum number of jobs in a page of a list
	MaxScreenRows        = 100            // maximum number of jobs in each section of a screen
	MaxWorkers           = 4096           // maximum number of workers of a service
	MaxJitter            = 24 * time.Hour // maximum jitter of a schedule
	maxCleanupDays       = 36500          // maximum age in days, for the method cleanup
	maxAttemptNumber     = 1<<31 - 1      // highest number of an attempt
	maxEventSeq          = 1e18           // highest number of an event
	maxWeight            = 1000           // maximum weight of a queue
	maxJobCount          = 1e9            // maximum value of a parameter that is a number of jobs
	maxBytes             = 1 << 50
	MaxScheduleNameBytes = 100 // maximum length of a schedule's name in bytes
)

// Constraints that several parameters share.
var (
	nonEmptyConstraint  = queue.Constraint{NotEmpty: true}
	queueNameConstraint = matchingFormat(queue.QueueNameFormat)
	// name of a user, a node or a schedule
	entityNameConstraint       = queue.Constraint{NotEmpty: true, MaxBytes: maxUserNameBytes}
	labelConstraint            = queue.Constraint{NotEmpty: true, MaxBytes: queue.MaxLabelBytes}
	durationConstraint         = numberBetween(0, queue.MaxDuration.Seconds())
	positiveDurationConstraint = queue.Constraint{Range: &queue.Range{Min: 0, Max: queue.MaxDuration.Seconds(),
		ExclusiveMin: true}}
	jobCursorConstraint = matchingFormat(&queue.TextFormat{Pattern: `^[1-9][0-9]{0,17}$`, Valid: isJobCursor,
		Description: `a cursor; use field "next" of the previous answer`})
	stateListConstraint = queue.Constraint{Enum: stateNames(queue.States(), "waiting", "done"), MaxItems: MaxTextListItems}
)

// globConstraint is a function because a variable's initializer would link the glob parser into the client.
func globConstraint() queue.Constraint {
	return queue.Constraint{NotEmpty: true, TextFormat: queue.GlobFormat, MaxBytes: queue.MaxGlobBytes}
}

func numberBetween(low, high float64) queue.Constraint {
	return queue.Constraint{Range: &queue.Range{Min: low, Max: high}}
}

func maxTextBytes(bytes int) queue.Constraint { return queue.Constraint{MaxBytes: bytes} }

func maxListItems(entries int) queue.Constraint { return queue.Constraint{MaxItems: entries} }

func matchingFormat(form *queue.TextFormat) queue.Constraint {
	return queue.Constraint{TextFormat: form}
}

func oneOfWords(list ...string) queue.Constraint { return queue.Constraint{Enum: list} }

func isJobCursor(s string) bool {
	n, err := strconv.ParseInt(s, 10, 64)
	return err == nil && n > 0 && n < 1e18 && s[0] >= '1' && s[0] <= '9'
}

func stateNames(states []queue.State, more ...string) []string {
	return append(queue.StateNames(states), more...)
}

// nonEmptyList returns a constraint on a list or a map that must not be empty.
func nonEmptyList(c queue.Constraint) queue.Constraint {
	c.MinItems = 1
	return c
}

var (
	requiredJobID   = requiredParam("id", nonEmptyConstraint)
	pageCursorParam = optionalParam("cursor", jobCursorConstraint)
	batchParam      = optionalParam("batch", labelConstraint)
)

// quoteNames returns names in quotes, separated by commas.
func quoteNames(names []string) string { return `"` + strings.Join(names, `", "`) + `"` }

// jobFilterParams returns the constrained parameters that select jobs of a list.
func jobFilterParams(more ...param) *ruleset {
	return &ruleset{params: append(more,
		optionalParam("label", maxListItems(queue.MaxLabels)), optionalParam("queue",
			queueNameConstraint), batchParam, optionalParam("user", entityNameConstraint),
		optionalParam("id_glob", globConstraint()), optionalParam("limit", numberBetween(1, MaxPageRows)), pageCursorParam)}
}

var selectorNames = []string{"all", "state", "failed", "label", "queue", "batch", "user", "older_than", "id_glob"}

// selectionRules returns the rules of a method that acts on jobs, with its additional parameters.
func selectionRules(more ...param) *ruleset {
	pick := `no jobs given; set parameter "id", "ids" or "all", or select jobs with ` + quoteNames(selectorNames[1:])
	return &ruleset{append(more,
		optionalParam("id", nonEmptyConstraint), optionalParam("ids",
			nonEmptyList(maxListItems(MaxJobIDs))), optionalParam("state", nonEmptyList(stateListConstraint)),
		optionalParam("label", nonEmptyList(maxListItems(queue.MaxLabels))), optionalParam("queue",
			queueNameConstraint), batchParam, optionalParam("user", entityNameConstraint),
		optionalParam("older_than", positiveDurationConstraint), optionalParam("id_glob", globConstraint()), pageCursorParam,
	), []paramCondition{requireOneSet(pick, []string{"ids", "id"}, selectorNames)}}
}

// classManyJobs marks a request with more jobs than MaxBatchRequestJobs, which only the last request
// of a batch may have.
const classManyJobs = "jobs:many"

// classWithPriority marks a request in which a job has a priority. The parameter "next" would override
// that priority.
const classWithPriority = "jobs:priority"

// hasPriority reports whether a job has a priority.
func hasPriority(s queue.Spec) bool { return s.Priority != nil }

// enqueueRules returns the rulesets of methods that enqueue jobs.
func enqueueRules() map[reflect.Type]*ruleset {
	// filledKey rejects an empty text, because the groups would count it as given.
	filledKey := queue.Constraint{NotEmpty: true, MaxBytes: queue.MaxKeyBytes}
	const twoPriorities = `cannot be combined with field "priority"; use one of them`
	jobs := optionalParam("jobs", maxListItems(queue.MaxJobsPerRequest))
	jobs.valueClasses = []valueClass{{
		classManyJobs, func(
			v reflect.Value) bool {
			return v.Len() > MaxBatchRequestJobs
		}, schema{"minItems": MaxBatchRequestJobs + 1},
	}, {
		classWithPriority, func(v reflect.Value) bool {
			return slices.ContainsFunc(v.Interface().([]queue.Spec),
				hasPriority)
		},
		schema{"contains": jobWithPrioritySchema()},
	}}
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[Enqueue](): {[]param{optionalParam("key", maxTextBytes(queue.MaxKeyBytes))},
			[]paramCondition{forbidTogether(twoPriorities, []string{"next"}, []string{"priority"})}},
		reflect.TypeFor[EnqueueBatch](): {[]param{
			optionalParam("batch", filledKey), jobs, optionalParam("key", filledKey),
		}, []paramCondition{
			requireAnyOf(`must be true if the batch is a single request; to send several requests, set parameter "batch"`,
				"commit",
				"batch"),
			requireAnyOf("no jobs given; only the last request of a batch may leave them out", "jobs", "commit", "abort"),
			requireAnyOf("no jobs given; only the last request of a batch may leave them out", "jobs", "batch"),
			requireWith(fmt.Sprintf("too many jobs; the maximum is %d, except in the last request of a batch",
				MaxBatchRequestJobs),
				[]string{classManyJobs}, []string{"commit"}),
			requireWith(`works only with parameter "batch"; name the batch to discard`, []string{"abort"}, []string{"batch"}),
			forbidTogether(`cannot be combined with parameter "commit" or "jobs"; leave them out`,
				[]string{"abort"}, []string{"commit", "jobs"}),
			requireWith(`works only with parameter "commit"; give the key only in the last request of a batch`,
				[]string{"key"}, []string{"commit"}),
			forbidTogether(twoPriorities, []string{"next"}, []string{classWithPriority}),
		}},
	}
}

// listRules returns the rulesets of methods that show jobs or wait for them.
func listRules() map[reflect.Type]*ruleset {
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[Show](): {params: []param{requiredJobID, optionalParam("history_before",
			numberBetween(1, maxAttemptNumber))}},
		reflect.TypeFor[List]():         jobFilterParams(optionalParam("state", stateListConstraint)),
		reflect.TypeFor[DLQList]():      jobFilterParams(),
		reflect.TypeFor[ScreenParams](): {params: []param{optionalParam("rows", numberBetween(1, MaxScreenRows))}},
		reflect.TypeFor[Wait](): {[]param{
			optionalParam("id", nonEmptyConstraint), optionalParam("ids",
				nonEmptyList(maxListItems(MaxWaitIDs))), optionalParam("timeout", durationConstraint),
		}, []paramCondition{requireAnyOf(`no jobs given; set parameter "id" or "ids"`, "ids", "id")}},
		reflect.TypeFor[Tree]():      {params: []param{requiredJobID}},
		reflect.TypeFor[WhyParams](): {params: []param{requiredJobID}},
		reflect.TypeFor[Simulate]():  {params: []param{optionalParam("next", numberBetween(1, MaxSimulatedJobs))}},
	}
}

// outputRules returns the rulesets of methods for the output and the terminals of jobs.
func outputRules() map[reflect.Type]*ruleset {
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[Logs](): {[]param{
			requiredJobID, optionalParam("attempt", numberBetween(1, maxAttemptNumber)), optionalParam("n",
				numberBetween(0, MaxOutputLines)),
		}, []paramCondition{
			forbidTogether(`works only for past output; leave out parameter "follow"`, []string{"until"}, []string{"follow"}),
			requireWith(`works only with parameter "follow"; set both`, []string{"all"}, []string{"follow"}),
			forbidTogether(`prints all output from the first attempt on; leave out parameters "attempt" and "n"`,
				[]string{"all"}, []string{"attempt", "n"}),
		}},
		reflect.TypeFor[Attach](): {[]param{
			requiredJobID, optionalParam("attempt", numberBetween(1, maxAttemptNumber)), optionalParam("rows",
				numberBetween(1, maxTerminalSize)),
			optionalParam("cols", numberBetween(1, maxTerminalSize)), optionalParam("text",
				maxTextBytes(MaxTypedBytes)), optionalParam("base64", maxTextBytes(MaxTypedBytes)),
		}, []paramCondition{
			requireWith(`works only with parameter "cols"; give both to change the size`,
				[]string{"rows"}, []string{"cols"}),
			requireWith(`works only with parameter "rows"; give both to change the size`,
				[]string{"cols"}, []string{"rows"}),
			forbidTogether(`cannot be combined with parameter "base64"; use one of them`, []string{"text"}, []string{"base64"}),
		}},
	}
}

// verbRules returns the rulesets of methods that change jobs.
func verbRules() map[reflect.Type]*ruleset {
	signal := &queue.TextFormat{Pattern: queue.SignalPattern(), Check: func(text string) error {
		_, err := queue.ParseSignal(text)
		return err
	}}
	everything := selectionRules()
	everything.conditions = append(everything.conditions,
		forbidTogether("selects all jobs; leave out the other parameters that select jobs", selectorNames[:1],
			selectorNames[1:]))
	clearAll := "must be true to remove the jobs permanently, with their history; use dry_run to count them"
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[Selection]():      selectionRules(),
		reflect.TypeFor[PauseSelection](): everything,
		reflect.TypeFor[Kill]():           selectionRules(optionalParam("signal", matchingFormat(signal))),
		reflect.TypeFor[Edit](): selectionRules(param{name: "set", required: true,
			fields: &fieldSet{excludedFields: []string{queue.UneditableField}, isEdit: true}}),
		reflect.TypeFor[Retry]():  selectionRules(),
		reflect.TypeFor[Remove](): selectionRules(),
		reflect.TypeFor[DLQRetry](): {[]param{
			optionalParam("id", nonEmptyConstraint), optionalParam("ids",
				nonEmptyList(maxListItems(MaxJobIDs))), batchParam, optionalParam("timeout", durationConstraint), pageCursorParam,
		}, []paramCondition{requireOneSet(`no jobs given; set parameter "id", "ids", "batch" or "all"`,
			[]string{"ids", "id"}, []string{"all", "batch"})}},
		reflect.TypeFor[ClearParams](): {[]param{batchParam}, []paramCondition{requireAnyOf(clearAll, "yes", "dry_run")}},
	}
}

// fieldsWithoutQueueDefault lists the fields for which a queue cannot have a default: fields that define
// what is executed, that choose the account, or that belong to a single job.
var fieldsWithoutQueueDefault = []string{
	"id", "queue", "command", "argv", "env", "env_pass", "env_secret", "cwd", "umask", "shell", "stdin", "stdin_file",
	"user", "tty", "on_completed", "on_failed", "on_dead", "on_ended", "depends_on",
}

// CheckQueueDefault returns an error if a queue cannot have a default for the field.
func CheckQueueDefault(field string) error {
	if slices.Contains(fieldsWithoutQueueDefault, field) {
		return queue.Invalid("default", `field %q cannot be a queue default; set it on each job`, field)
	}
	return nil
}

// queueRules returns the rulesets of methods for queues and their statistics.
func queueRules() map[reflect.Type]*ruleset {
	keep := numberBetween(0, maxJobCount)
	settings := []string{"concurrency", "weight", "max_pending", "default", "retention", "retention_max_jobs",
		"retention_output"}
	nothing := "no changes given; set at least one of the parameters " + quoteNames(settings)
	oneOrAll := requireOneSet(`no queue given; set parameter "name", or set parameter "all" to true`,
		[]string{"name"}, []string{"all"})
	needName, name := requiredParam("name", queueNameConstraint), optionalParam("name", queueNameConstraint)
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[QueueListParams](): {params: []param{optionalParam("after", queueNameConstraint)}},
		reflect.TypeFor[QueueSet](): {[]param{
			needName, optionalParam("concurrency", numberBetween(0, queue.MaxDemandAmount)), optionalParam("weight",
				numberBetween(1, maxWeight)),
			optionalParam("max_pending", keep), {name: "default", fields: &fieldSet{excludedFields: fieldsWithoutQueueDefault}},
			optionalParam("retention_max_jobs", keep), optionalParam("retention_output", numberBetween(0, maxBytes)),
		}, []paramCondition{requireAnyOf(nothing, settings...)}},
		reflect.TypeFor[QueuePause](): {[]param{
			name, optionalParam("reason", maxTextBytes(queue.MaxLabelBytes)), optionalParam("for", positiveDurationConstraint),
		}, []paramCondition{
			oneOrAll,
			forbidTogether(`cannot be combined with parameter "until"; use one of them`, []string{"for"}, []string{"until"}),
			forbidTogether(`a pause that freezes jobs lasts until the queue is resumed; leave out parameters "until" and "for"`,
				[]string{"freeze"}, []string{"until", "for"}),
		}},
		reflect.TypeFor[QueueName]():   {[]param{name}, []paramCondition{oneOrAll}},
		reflect.TypeFor[QueueRemove](): {params: []param{needName}},
		reflect.TypeFor[StatsParams](): {[]param{optionalParam("queue", queueNameConstraint), optionalParam("by",
			oneOfWords("minute", "hour", "day"))},
			[]paramCondition{forbidTogether(
				`covers all queues and all times; leave out parameters "queue", "since", "until" and "by"`,
				[]string{"ever"}, []string{"queue", "since", "until", "by"})}},
	}
}

// gateRules returns the rulesets of methods for locks, rates and resources.
func gateRules() map[reflect.Type]*ruleset {
	gateCursor := &queue.TextFormat{Pattern: `^(0|-?[1-9][0-9]{0,9}) ([1-9][0-9]?|100) [\s\S]+$`, Valid: validGateCursor,
		Description: `a cursor from gate.list; use field "next" of its answer`}
	key := &queue.TextFormat{Pattern: `^@[A-Za-z0-9][A-Za-z0-9._@/-]{0,127}$`, Valid: validSharedKey,
		Description: "a shared key; write @, then 1 to 128 characters from A-Z a-z 0-9 . _ @ / -, the " +
			"first a letter or digit"}
	rate := &queue.TextFormat{Pattern: `^([1-9][0-9]{0,3}|10000)/[smhd]$`, Valid: validRate,
		Description: "a rate; write N/PERIOD with N from 1 to 10000 and a period of s, m, h or d, such as 10/m"}
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[GateSet](): {[]param{
			requiredParam("key", matchingFormat(key)), optionalParam("lock",
				numberBetween(1, queue.MaxDemandAmount)), optionalParam("rate", matchingFormat(rate)),
			optionalParam("unset", oneOfWords("lock", "rate")),
		}, []paramCondition{
			requireOneSet(`no rule given; set parameter "lock", "rate" or "unset"`,
				[]string{"lock"}, []string{"rate", "unset"}),
			forbidTogether(`cannot be combined with parameter "unset"; use one of them`, []string{"rate"}, []string{"unset"}),
		}},
		reflect.TypeFor[GateListParams](): {params: []param{optionalParam("cursor", queue.Constraint{TextFormat: gateCursor,
			MaxBytes: maxGateCursorBytes})}},
	}
}

// workerRules returns the rulesets of methods for workers and nodes.
func workerRules() map[reflect.Type]*ruleset {
	drain := []paramCondition{forbidTogether(`cannot be combined with parameter "off"; use one of them`,
		[]string{"wait"}, []string{"off"})}
	needName := requiredParam("name", entityNameConstraint)
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[NodeListParams](): {params: []param{optionalParam("cursor", entityNameConstraint)}},
		reflect.TypeFor[WorkerStart]():    {params: []param{optionalParam("count", numberBetween(1, MaxWorkers))}},
		reflect.TypeFor[WorkerScale]():    {params: []param{requiredParam("count", numberBetween(0, MaxWorkers))}},
		reflect.TypeFor[WorkerStop](): {[]param{optionalParam("count", numberBetween(1, MaxWorkers)), optionalParam("timeout",
			durationConstraint)},
			[]paramCondition{forbidTogether(`cannot be combined with parameter "all"; use one of them`, []string{"count"},
				[]string{"all"})}},
		reflect.TypeFor[NodeName]():  {params: []param{needName}},
		reflect.TypeFor[NodeDrain](): {[]param{needName}, drain},
		reflect.TypeFor[Drain]():     {conditions: drain},
	}
}

func validGateCursor(s string) bool {
	at, err := (&GateListParams{Cursor: s}).Position()
	return err == nil && s == GateCursor(at)
}

func validSharedKey(s string) bool { return strings.HasPrefix(s, "@") && queue.ValidID(s[1:]) }

func validRate(s string) bool {
	_, err := queue.ParseRate("key=" + s)
	return err == nil && s[0] >= '1' && s[0] <= '9'
}

// scheduleRules returns the rulesets of methods for schedules and hooks.
func scheduleRules() map[reflect.Type]*ruleset {
	form := &queue.TextFormat{Pattern: `^[A-Za-z0-9][A-Za-z0-9._@/-]{0,99}$`, Valid: validSchedule,
		Description: "a valid schedule name; use 1 to 100 characters from A-Z a-z 0-9 . _ @ / -, the first a letter or digit"}
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[ScheduleAdd](): {params: []param{
			requiredParam("name", matchingFormat(form)), requiredParam("cron", nonEmptyConstraint), optionalParam("tz",
				nonEmptyConstraint),
			optionalParam("jitter", numberBetween(0, MaxJitter.Seconds())), optionalParam("catch_up", oneOfWords("none", "one",
				"all")),
			optionalParam("overlap", oneOfWords("skip", "queue", "replace")),
		}},
		reflect.TypeFor[ScheduleName](): {params: []param{requiredParam("name", entityNameConstraint)}},
		reflect.TypeFor[ScheduleList](): {params: []param{optionalParam("cursor", maxTextBytes(maxUserNameBytes))}},
		reflect.TypeFor[HookName]():     {params: []param{requiredParam("name", nonEmptyConstraint)}},
	}
}

func validSchedule(s string) bool { return queue.ValidID(s) && len(s) <= MaxScheduleNameBytes }

// classAudit marks a value of the parameter "event" that includes the kind "audit".
const classAudit = "event:audit"

// containsWordSchema returns the schema of a text equal to the word, or a list of texts that contains it.
func containsWordSchema(word string) schema {
	return schema{"anyOf": []schema{{"const": word}, {"type": "array", "contains": schema{"const": word}}}}
}

// serviceRules returns the rulesets of methods for the service itself.
func serviceRules() map[reflect.Type]*ruleset {
	needKey := requiredParam("key", nonEmptyConstraint)
	var kinds []string
	for _, k := range queue.EventKinds() {
		kinds = append(kinds, string(k))
	}
	event := optionalParam("event", queue.Constraint{Enum: kinds, MaxItems: MaxTextListItems})
	event.valueClasses = []valueClass{{classAudit, func(v reflect.Value) bool {
		texts, _ := v.Interface().(TextList)
		return slices.Contains(texts, string(queue.EventAudit))
	}, containsWordSchema(string(queue.EventAudit))}}
	ended := slices.DeleteFunc(slices.Clone(queue.States()), func(s queue.State) bool { return !s.Ended() })
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[ConfigKey](): {params: []param{needKey}},
		reflect.TypeFor[ConfigSet](): {params: []param{needKey, requiredParam("value",
			queue.Constraint{NotEmpty: true, MaxBytes: MaxSettingValueBytes,
				MessageSuffix: "; use config.unset to restore the default"})}},
		reflect.TypeFor[Events](): {[]param{optionalParam("since", numberBetween(0, maxEventSeq)), optionalParam("id",
			maxListItems(MaxWaitIDs)), event},
			[]paramCondition{
				forbidTogether(`works only for past events; leave out parameter "follow"`, []string{"until"}, []string{"follow"}),
				requireWith(`the kind "audit" works only with parameter "audit"; set both (admins only)`,
					[]string{classAudit}, []string{"audit"}),
			}},
		reflect.TypeFor[Cleanup](): {params: []param{
			optionalParam("days", numberBetween(0, maxCleanupDays)),
			optionalParam("state", queue.Constraint{Enum: stateNames(ended, "done"), MaxItems: MaxTextListItems}),
			optionalParam("keep", numberBetween(0, maxJobCount)),
		}},
	}
}
