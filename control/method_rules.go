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
	MaxPage       = 1000           // maximum number of jobs in a page of a list
	MaxScreenRows = 100            // maximum number of jobs in each section of a screen
	MaxWorkers    = 4096           // maximum number of workers of a service
	MaxJitter     = 24 * time.Hour // maximum jitter of a schedule
	maxCleanup    = 36500          // maximum age in days, for the method cleanup
	maxNumber     = 1<<31 - 1      // highest number of an attempt
	maxSequence   = 1e18           // highest number of an event
	maxWeight     = 1000           // maximum weight of a queue
	maxCount      = 1e9            // maximum value of a parameter that is a number of jobs
	maxBytes      = 1 << 50
	MaxSchedule   = 100 // maximum length of a schedule's name in bytes
)

// Constraints that several parameters share.
var (
	notEmpty         = queue.Constraint{NotEmpty: true}
	queueName        = matching(queue.FormQueue)
	entityName       = queue.Constraint{NotEmpty: true, MaxBytes: maxUser} // name of a user, a node or a schedule
	label            = queue.Constraint{NotEmpty: true, MaxBytes: queue.MaxLabel}
	duration         = between(0, queue.MaxDuration.Seconds())
	positiveDuration = queue.Constraint{Range: &queue.Range{Min: 0, Max: queue.MaxDuration.Seconds(), Above: true}}
	jobCursor        = matching(&queue.Form{Pattern: `^[1-9][0-9]{0,17}$`, Valid: validCursor,
		Description: `a cursor; use field "next" of the previous answer`})
	stateList = queue.Constraint{Enum: stateWords(queue.States(), "waiting", "done"), MaxItems: MaxTexts}
)

// glob is a function because a variable's initializer would link the glob parser into the client.
func glob() queue.Constraint {
	return queue.Constraint{NotEmpty: true, Text: queue.FormGlob, MaxBytes: queue.MaxGlob}
}

func between(low, high float64) queue.Constraint {
	return queue.Constraint{Range: &queue.Range{Min: low, Max: high}}
}

func upTo(bytes int) queue.Constraint { return queue.Constraint{MaxBytes: bytes} }

func atMost(entries int) queue.Constraint { return queue.Constraint{MaxItems: entries} }

func matching(form *queue.Form) queue.Constraint { return queue.Constraint{Text: form} }

func words(list ...string) queue.Constraint { return queue.Constraint{Enum: list} }

func validCursor(s string) bool {
	n, err := strconv.ParseInt(s, 10, 64)
	return err == nil && n > 0 && n < 1e18 && s[0] >= '1' && s[0] <= '9'
}

func stateWords(states []queue.State, more ...string) []string {
	return append(queue.StateNames(states), more...)
}

// nonEmpty returns a constraint on a list or a map that must not be empty.
func nonEmpty(c queue.Constraint) queue.Constraint {
	c.MinItems = 1
	return c
}

var (
	needJob    = need("id", notEmpty)
	pageCursor = opt("cursor", jobCursor)
	batchLabel = opt("batch", label)
)

// quoted returns names in quotes, separated by commas.
func quoted(names []string) string { return `"` + strings.Join(names, `", "`) + `"` }

// filters returns the constrained parameters that select jobs of a list.
func filters(more ...param) *ruleset {
	return &ruleset{params: append(more,
		opt("label", atMost(queue.MaxLabels)), opt("queue", queueName), batchLabel, opt("user", entityName),
		opt("id_glob", glob()), opt("limit", between(1, MaxPage)), pageCursor)}
}

var selectors = []string{"all", "state", "failed", "label", "queue", "batch", "user", "older_than", "id_glob"}

// selection returns the rules of a method that acts on jobs, with its additional parameters.
func selection(more ...param) *ruleset {
	pick := `no jobs given; set parameter "id", "ids" or "all", or select jobs with ` + quoted(selectors[1:])
	return &ruleset{append(more,
		opt("id", notEmpty), opt("ids", nonEmpty(atMost(MaxNames))), opt("state", nonEmpty(stateList)),
		opt("label", nonEmpty(atMost(queue.MaxLabels))), opt("queue", queueName), batchLabel, opt("user", entityName),
		opt("older_than", positiveDuration), opt("id_glob", glob()), pageCursor,
	), []group{exactlyOneOf(pick, []string{"ids", "id"}, selectors)}}
}

// overStep marks a request with more jobs than BatchStep, which only the last request of a batch may have.
const overStep = "jobs:many"

// withPriority marks a request in which a job has a priority. The parameter "next" would override
// that priority.
const withPriority = "jobs:priority"

// prioritized reports whether a job has a priority.
func prioritized(s queue.Spec) bool { return s.Priority != nil }

// enqueueRules returns the rulesets of methods that enqueue jobs.
func enqueueRules() map[reflect.Type]*ruleset {
	// filledKey rejects an empty text, because the groups would count it as given.
	filledKey := queue.Constraint{NotEmpty: true, MaxBytes: queue.MaxKey}
	const twoPriorities = `cannot be combined with field "priority"; use one of them`
	jobs := opt("jobs", atMost(queue.MaxBatch))
	jobs.marks = []mark{{
		overStep, func(v reflect.Value) bool { return v.Len() > BatchStep }, schema{"minItems": BatchStep + 1},
	}, {
		withPriority, func(v reflect.Value) bool { return slices.ContainsFunc(v.Interface().([]queue.Spec), prioritized) },
		schema{"contains": givenPriority()},
	}}
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[Enqueue](): {[]param{opt("key", upTo(queue.MaxKey))},
			[]group{excludes(twoPriorities, []string{"next"}, []string{"priority"})}},
		reflect.TypeFor[EnqueueBatch](): {[]param{
			opt("batch", filledKey), jobs, opt("key", filledKey),
		}, []group{
			anyOf(`must be true if the batch is a single request; to send several requests, set parameter "batch"`, "commit",
				"batch"),
			anyOf("no jobs given; only the last request of a batch may leave them out", "jobs", "commit", "abort"),
			anyOf("no jobs given; only the last request of a batch may leave them out", "jobs", "batch"),
			requires(fmt.Sprintf("too many jobs; the maximum is %d, except in the last request of a batch", BatchStep),
				[]string{overStep}, []string{"commit"}),
			requires(`works only with parameter "batch"; name the batch to discard`, []string{"abort"}, []string{"batch"}),
			excludes(`cannot be combined with parameter "commit" or "jobs"; leave them out`,
				[]string{"abort"}, []string{"commit", "jobs"}),
			requires(`works only with parameter "commit"; give the key only in the last request of a batch`,
				[]string{"key"}, []string{"commit"}),
			excludes(twoPriorities, []string{"next"}, []string{withPriority}),
		}},
	}
}

// listRules returns the rulesets of methods that show jobs or wait for them.
func listRules() map[reflect.Type]*ruleset {
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[Show]():       {params: []param{needJob, opt("history_before", between(1, maxNumber))}},
		reflect.TypeFor[List]():       filters(opt("state", stateList)),
		reflect.TypeFor[DLQList]():    filters(),
		reflect.TypeFor[ScreenRows](): {params: []param{opt("rows", between(1, MaxScreenRows))}},
		reflect.TypeFor[Wait](): {[]param{
			opt("id", notEmpty), opt("ids", nonEmpty(atMost(MaxWaits))), opt("timeout", duration),
		}, []group{anyOf(`no jobs given; set parameter "id" or "ids"`, "ids", "id")}},
		reflect.TypeFor[Tree]():      {params: []param{needJob}},
		reflect.TypeFor[WhyParams](): {params: []param{needJob}},
		reflect.TypeFor[Simulate]():  {params: []param{opt("next", between(1, MaxSimulated))}},
	}
}

// outputRules returns the rulesets of methods for the output and the terminals of jobs.
func outputRules() map[reflect.Type]*ruleset {
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[Logs](): {[]param{
			needJob, opt("attempt", between(1, maxNumber)), opt("n", between(0, MaxLines)),
		}, []group{
			excludes(`works only for past output; leave out parameter "follow"`, []string{"until"}, []string{"follow"}),
			requires(`works only with parameter "follow"; set both`, []string{"all"}, []string{"follow"}),
			excludes(`prints all output from the first attempt on; leave out parameters "attempt" and "n"`,
				[]string{"all"}, []string{"attempt", "n"}),
		}},
		reflect.TypeFor[Attach](): {[]param{
			needJob, opt("attempt", between(1, maxNumber)), opt("rows", between(1, maxTerminal)),
			opt("cols", between(1, maxTerminal)), opt("text", upTo(MaxTyped)), opt("base64", upTo(MaxTyped)),
		}, []group{
			requires(`works only with parameter "cols"; give both to change the size`,
				[]string{"rows"}, []string{"cols"}),
			requires(`works only with parameter "rows"; give both to change the size`,
				[]string{"cols"}, []string{"rows"}),
			excludes(`cannot be combined with parameter "base64"; use one of them`, []string{"text"}, []string{"base64"}),
		}},
	}
}

// verbRules returns the rulesets of methods that change jobs.
func verbRules() map[reflect.Type]*ruleset {
	signal := &queue.Form{Pattern: queue.SignalPattern(), Check: func(text string) error {
		_, err := queue.ParseSignal(text)
		return err
	}}
	everything := selection()
	everything.groups = append(everything.groups,
		excludes("selects all jobs; leave out the other parameters that select jobs", selectors[:1], selectors[1:]))
	clearAll := "must be true to remove the jobs permanently, with their history; use dry_run to count them"
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[Selection]():      selection(),
		reflect.TypeFor[PauseSelection](): everything,
		reflect.TypeFor[Kill]():           selection(opt("signal", matching(signal))),
		reflect.TypeFor[Edit](): selection(param{name: "set", required: true,
			fields: &fieldSet{excludedFields: []string{queue.NotEdited}, edit: true}}),
		reflect.TypeFor[Retry]():  selection(),
		reflect.TypeFor[Remove](): selection(),
		reflect.TypeFor[DLQRetry](): {[]param{
			opt("id", notEmpty), opt("ids", nonEmpty(atMost(MaxNames))), batchLabel, opt("timeout", duration), pageCursor,
		}, []group{exactlyOneOf(`no jobs given; set parameter "id", "ids", "batch" or "all"`,
			[]string{"ids", "id"}, []string{"all", "batch"})}},
		reflect.TypeFor[ClearParams](): {[]param{batchLabel}, []group{anyOf(clearAll, "yes", "dry_run")}},
	}
}

// notQueueDefaults lists the fields for which a queue cannot have a default: fields that define
// what is executed, that choose the account, or that belong to a single job.
var notQueueDefaults = []string{
	"id", "queue", "command", "argv", "env", "env_pass", "env_secret", "cwd", "umask", "shell", "stdin", "stdin_file",
	"user", "tty", "on_completed", "on_failed", "on_dead", "on_ended", "depends_on",
}

// CheckQueueDefault returns an error if a queue cannot have a default for the field.
func CheckQueueDefault(field string) error {
	if slices.Contains(notQueueDefaults, field) {
		return queue.Invalid("default", `field %q cannot be a queue default; set it on each job`, field)
	}
	return nil
}

// queueRules returns the rulesets of methods for queues and their statistics.
func queueRules() map[reflect.Type]*ruleset {
	keep := between(0, maxCount)
	settings := []string{"concurrency", "weight", "max_pending", "default", "retention", "retention_max_jobs",
		"retention_output"}
	nothing := "no changes given; set at least one of the parameters " + quoted(settings)
	oneOrAll := exactlyOneOf(`no queue given; set parameter "name", or set parameter "all" to true`,
		[]string{"name"}, []string{"all"})
	needName, name := need("name", queueName), opt("name", queueName)
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[Queues](): {params: []param{opt("after", queueName)}},
		reflect.TypeFor[QueueSet](): {[]param{
			needName, opt("concurrency", between(0, queue.MaxDemand)), opt("weight", between(1, maxWeight)),
			opt("max_pending", keep), {name: "default", fields: &fieldSet{excludedFields: notQueueDefaults}},
			opt("retention_max_jobs", keep), opt("retention_output", between(0, maxBytes)),
		}, []group{anyOf(nothing, settings...)}},
		reflect.TypeFor[QueuePause](): {[]param{
			name, opt("reason", upTo(queue.MaxLabel)), opt("for", positiveDuration),
		}, []group{
			oneOrAll,
			excludes(`cannot be combined with parameter "until"; use one of them`, []string{"for"}, []string{"until"}),
			excludes(`a pause that freezes jobs lasts until the queue is resumed; leave out parameters "until" and "for"`,
				[]string{"freeze"}, []string{"until", "for"}),
		}},
		reflect.TypeFor[QueueName]():   {[]param{name}, []group{oneOrAll}},
		reflect.TypeFor[QueueRemove](): {params: []param{needName}},
		reflect.TypeFor[StatsParams](): {[]param{opt("queue", queueName), opt("by", words("minute", "hour", "day"))},
			[]group{excludes(`covers all queues and all times; leave out parameters "queue", "since", "until" and "by"`,
				[]string{"ever"}, []string{"queue", "since", "until", "by"})}},
	}
}

// gateRules returns the rulesets of methods for locks, rates and resources.
func gateRules() map[reflect.Type]*ruleset {
	gateCursor := &queue.Form{Pattern: `^(0|-?[1-9][0-9]{0,9}) ([1-9][0-9]?|100) [\s\S]+$`, Valid: validGateCursor,
		Description: `a cursor from gate.list; use field "next" of its answer`}
	key := &queue.Form{Pattern: `^@[A-Za-z0-9][A-Za-z0-9._@/-]{0,127}$`, Valid: validSharedKey,
		Description: "a shared key; write @, then 1 to 128 characters from A-Z a-z 0-9 . _ @ / -, the " +
			"first a letter or digit"}
	rate := &queue.Form{Pattern: `^([1-9][0-9]{0,3}|10000)/[smhd]$`, Valid: validRate,
		Description: "a rate; write N/PERIOD with N from 1 to 10000 and a period of s, m, h or d, such as 10/m"}
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[GateSet](): {[]param{
			need("key", matching(key)), opt("lock", between(1, queue.MaxDemand)), opt("rate", matching(rate)),
			opt("unset", words("lock", "rate")),
		}, []group{
			exactlyOneOf(`no rule given; set parameter "lock", "rate" or "unset"`,
				[]string{"lock"}, []string{"rate", "unset"}),
			excludes(`cannot be combined with parameter "unset"; use one of them`, []string{"rate"}, []string{"unset"}),
		}},
		reflect.TypeFor[Gates](): {params: []param{opt("cursor", queue.Constraint{Text: gateCursor, MaxBytes: maxGate})}},
	}
}

// workerRules returns the rulesets of methods for workers and nodes.
func workerRules() map[reflect.Type]*ruleset {
	drain := []group{excludes(`cannot be combined with parameter "off"; use one of them`,
		[]string{"wait"}, []string{"off"})}
	needName := need("name", entityName)
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[Nodes]():       {params: []param{opt("cursor", entityName)}},
		reflect.TypeFor[Count]():       {params: []param{opt("count", between(1, MaxWorkers))}},
		reflect.TypeFor[WorkerScale](): {params: []param{need("count", between(0, MaxWorkers))}},
		reflect.TypeFor[WorkerStop](): {[]param{opt("count", between(1, MaxWorkers)), opt("timeout", duration)},
			[]group{excludes(`cannot be combined with parameter "all"; use one of them`, []string{"count"}, []string{"all"})}},
		reflect.TypeFor[NodeName]():  {params: []param{needName}},
		reflect.TypeFor[NodeDrain](): {[]param{needName}, drain},
		reflect.TypeFor[Drain]():     {groups: drain},
	}
}

func validGateCursor(s string) bool {
	at, err := (&Gates{Cursor: s}).Position()
	return err == nil && s == GateCursor(at)
}

func validSharedKey(s string) bool { return strings.HasPrefix(s, "@") && queue.ValidID(s[1:]) }

func validRate(s string) bool {
	_, err := queue.ParseRate("key=" + s)
	return err == nil && s[0] >= '1' && s[0] <= '9'
}

// scheduleRules returns the rulesets of methods for schedules and hooks.
func scheduleRules() map[reflect.Type]*ruleset {
	form := &queue.Form{Pattern: `^[A-Za-z0-9][A-Za-z0-9._@/-]{0,99}$`, Valid: validSchedule,
		Description: "a valid schedule name; use 1 to 100 characters from A-Z a-z 0-9 . _ @ / -, the first a letter or digit"}
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[ScheduleAdd](): {params: []param{
			need("name", matching(form)), need("cron", notEmpty), opt("tz", notEmpty),
			opt("jitter", between(0, MaxJitter.Seconds())), opt("catch_up", words("none", "one", "all")),
			opt("overlap", words("skip", "queue", "replace")),
		}},
		reflect.TypeFor[ScheduleName](): {params: []param{need("name", entityName)}},
		reflect.TypeFor[ScheduleList](): {params: []param{opt("cursor", upTo(maxUser))}},
		reflect.TypeFor[HookName]():     {params: []param{need("name", notEmpty)}},
	}
}

func validSchedule(s string) bool { return queue.ValidID(s) && len(s) <= MaxSchedule }

// audited marks a value of the parameter "event" that includes the kind "audit".
const audited = "event:audit"

// containsWord returns the schema of a text equal to the word, or a list of texts that contains it.
func containsWord(word string) schema {
	return schema{"anyOf": []schema{{"const": word}, {"type": "array", "contains": schema{"const": word}}}}
}

// serviceRules returns the rulesets of methods for the service itself.
func serviceRules() map[reflect.Type]*ruleset {
	needKey := need("key", notEmpty)
	var kinds []string
	for _, k := range queue.EventKinds() {
		kinds = append(kinds, string(k))
	}
	event := opt("event", queue.Constraint{Enum: kinds, MaxItems: MaxTexts})
	event.marks = []mark{{audited, func(v reflect.Value) bool {
		texts, _ := v.Interface().(Texts)
		return slices.Contains(texts, string(queue.EventAudit))
	}, containsWord(string(queue.EventAudit))}}
	ended := slices.DeleteFunc(slices.Clone(queue.States()), func(s queue.State) bool { return !s.Ended() })
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[ConfigKey](): {params: []param{needKey}},
		reflect.TypeFor[ConfigSet](): {params: []param{needKey, need("value",
			queue.Constraint{NotEmpty: true, MaxBytes: MaxScalar, Note: "; use config.unset to restore the default"})}},
		reflect.TypeFor[Events](): {[]param{opt("since", between(0, maxSequence)), opt("id", atMost(MaxWaits)), event},
			[]group{
				excludes(`works only for past events; leave out parameter "follow"`, []string{"until"}, []string{"follow"}),
				requires(`the kind "audit" works only with parameter "audit"; set both (admins only)`,
					[]string{audited}, []string{"audit"}),
			}},
		reflect.TypeFor[Cleanup](): {params: []param{
			opt("days", between(0, maxCleanup)),
			opt("state", queue.Constraint{Enum: stateWords(ended, "done"), MaxItems: MaxTexts}),
			opt("keep", between(0, maxCount)),
		}},
	}
}
