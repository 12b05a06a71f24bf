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
	userName         = queue.Constraint{NotEmpty: true, MaxBytes: maxUser}
	entityName       = queue.Constraint{NotEmpty: true, MaxBytes: maxUser}
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

// filledUpTo returns a constraint on a text that belongs to a group of parameters. It rejects an
// empty text, because the group would count it as given.
func filledUpTo(bytes int) queue.Constraint { return queue.Constraint{NotEmpty: true, MaxBytes: bytes} }

func atMost(entries int) queue.Constraint { return queue.Constraint{MaxItems: entries} }

func matching(form *queue.Form) queue.Constraint { return queue.Constraint{Text: form} }

func words(list ...string) queue.Constraint { return queue.Constraint{Enum: list} }

func validCursor(s string) bool {
	n, err := strconv.ParseInt(s, 10, 64)
	return err == nil && n > 0 && n < 1e18 && s[0] >= '1' && s[0] <= '9'
}

func stateWords(states []queue.State, more ...string) (list []string) {
	for _, s := range states {
		list = append(list, s.String())
	}
	return append(list, more...)
}

// nonEmpty returns a constraint on a list or a map that must not be empty.
func nonEmpty(c queue.Constraint) queue.Constraint {
	c.MinItems = 1
	return c
}

var (
	needJob    = need("id", "id of the job", notEmpty)
	dryRun     = free("dry_run", "count the selected jobs without changing them")
	pageCursor = opt("cursor", `field "next" of the previous answer, to get the next page`, jobCursor)
	batchLabel = opt("batch", "only your own jobs in this batch", label)
)

// quoted returns names in quotes, separated by commas.
func quoted(names []string) string { return `"` + strings.Join(names, `", "`) + `"` }

// filters returns the parameters that select jobs of a list.
func filters() []param {
	return []param{
		opt("label", "only jobs with all of these labels", atMost(queue.MaxLabels)),
		opt("queue", "only jobs of this queue", queueName),
		batchLabel,
		opt("user", "only jobs that this user enqueued", userName),
		opt("id_glob", "only jobs whose id matches this pattern (wildcards: *, ? and sets such as [a-z])", glob()),
		free("since", "only jobs that ended (or, if unfinished, were enqueued) at this time or later"),
		free("until", "only jobs that ended (or, if unfinished, were enqueued) before this time"),
		opt("limit", "maximum number of jobs in the answer (default: 1000)", between(1, MaxPage)),
		pageCursor,
	}
}

var selectors = []string{"all", "state", "failed", "label", "queue", "batch", "user", "older_than", "id_glob"}

// selection returns the rules of a method that acts on jobs, with its additional parameters.
func selection(more ...param) *ruleset {
	pick := `no jobs given; set parameter "id", "ids" or "all", or select jobs with ` + quoted(selectors[1:])
	return &ruleset{append([]param{
		opt("id", "id of a job", notEmpty),
		opt("ids", "ids of jobs", nonEmpty(atMost(MaxNames))),
		free("all", "every job whose state the method accepts"),
		opt("state", "jobs in any of these states (default: those that the method accepts)", nonEmpty(stateList)),
		free("failed", "jobs in the states dead and failed"),
		opt("label", "jobs with all of these labels", nonEmpty(atMost(queue.MaxLabels))),
		opt("queue", "jobs of this queue", queueName),
		opt("batch", "your own jobs in this batch", label),
		opt("user", "jobs that this user enqueued", userName),
		opt("older_than", "jobs that ended (or, if unfinished, were enqueued) at least this long ago", positiveDuration),
		opt("id_glob", "jobs whose id matches this pattern (wildcards: *, ? and sets such as [a-z])", glob()),
		dryRun, pageCursor,
	}, more...), []group{exactlyOneOf(pick, []string{"ids", "id"}, selectors)}}
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
	const twoPriorities = `cannot be combined with field "priority"; use one of them`
	next := free("next", "start before your other waiting jobs (the service chooses the priority)")
	jobs := opt("jobs", "jobs to enqueue; if one is refused, none is enqueued", atMost(queue.MaxBatch))
	jobs.marks = []mark{{
		overStep, func(v reflect.Value) bool { return v.Len() > BatchStep }, schema{"minItems": BatchStep + 1},
	}, {
		withPriority, func(v reflect.Value) bool { return slices.ContainsFunc(v.Interface().([]queue.Spec), prioritized) },
		schema{"contains": givenPriority()},
	}}
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[Enqueue](): {[]param{
			opt("key", "idempotency key: a repeated request with this key gets the same answer", upTo(queue.MaxKey)),
			free("require_limits", "refuse a job with a limit that this machine cannot enforce"), next,
		}, []group{excludes(twoPriorities, []string{"next"}, []string{"priority"})}},
		reflect.TypeFor[EnqueueBatch](): {[]param{
			opt("batch", "name of the batch; required if it is sent in several requests", filledUpTo(queue.MaxKey)),
			jobs,
			free("commit", "this is the last or only request of the batch"),
			opt("key", `idempotency key, only with parameter "commit": a repeated request with this key gets the same answer`,
				filledUpTo(queue.MaxKey)),
			free("abort", "discard the jobs that this batch has received"),
			free("require_limits", "refuse jobs with a limit that this machine cannot enforce"), next,
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
		reflect.TypeFor[Show](): {params: []param{
			needJob,
			opt("history_before", "only attempts with a number lower than this value", between(1, maxNumber)),
			free("without_env", "leave the environment variables of the job out of the answer"),
		}},
		reflect.TypeFor[List](): {params: append([]param{
			opt("state", "only jobs in any of these states; waiting means blocked, held, pending and failed (to be retried); "+
				"done means completed", stateList),
			free("failed", "only jobs in the states dead and failed"),
		}, filters()...)},
		reflect.TypeFor[DLQList](): {params: filters()},
		reflect.TypeFor[ScreenRows](): {params: []param{opt("rows",
			"maximum number of jobs per section of the screen (default: 10)",
			between(1, MaxScreenRows))}},
		reflect.TypeFor[Wait](): {[]param{
			opt("id", "id of a job", notEmpty),
			opt("ids", "ids of jobs", nonEmpty(atMost(MaxWaits))),
			free("any", "answer when one of the jobs has ended, instead of all"),
			opt("timeout", "answer after at most this duration, even if the jobs have not ended (default: unlimited)", duration),
		}, []group{anyOf(`no jobs given; set parameter "id" or "ids"`, "ids", "id")}},
		reflect.TypeFor[Tree]():      {params: []param{needJob}},
		reflect.TypeFor[WhyParams](): {params: []param{needJob}},
		reflect.TypeFor[Simulate](): {params: []param{opt("next",
			"number of jobs for which to predict the start (default: 20)",
			between(1, MaxSimulated))}},
	}
}

// outputRules returns the rulesets of methods for the output and the terminals of jobs.
func outputRules() map[reflect.Type]*ruleset {
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[Logs](): {[]param{
			needJob,
			opt("attempt", "number of the attempt (default: the latest)", between(1, maxNumber)),
			free("all", `with parameter "follow": start with the output of the first attempt`),
			free("follow", "keep sending output until the job has ended"),
			free("stdout", "standard output only"),
			free("stderr", "standard error only"),
			opt("n", "number of lines, counted from the end of the output", between(0, MaxLines)),
			free("since", "only output printed at this time or later"),
			free("until", "only output printed before this time"),
			free("ends", `with parameter "follow": report when an attempt has ended and another will follow`),
		}, []group{
			excludes(`works only for past output; leave out parameter "follow"`, []string{"until"}, []string{"follow"}),
			requires(`works only with parameter "follow"; set both`, []string{"all"}, []string{"follow"}),
			excludes(`prints all output from the first attempt on; leave out parameters "attempt" and "n"`,
				[]string{"all"}, []string{"attempt", "n"}),
		}},
		reflect.TypeFor[Attach](): {[]param{
			needJob,
			opt("attempt", "number of the attempt (default: the running one)", between(1, maxNumber)),
			free("wait", "wait until the attempt has started"),
			opt("rows", "new height of the terminal, in rows", between(1, maxTerminal)),
			opt("cols", "new width of the terminal, in columns", between(1, maxTerminal)),
			opt("text", "text to type into the terminal", upTo(MaxTyped)),
			opt("base64", "bytes to type into the terminal, in base64", upTo(MaxTyped)),
			free("controls", "also return the control sequences with which the job has changed the modes of its terminal"),
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
		reflect.TypeFor[Kill](): selection(opt("signal", "name or number of the signal (default: TERM)",
			matching(signal))),
		reflect.TypeFor[Edit](): selection(param{
			name: "set", doc: "object with the fields to change; null restores the default of a field", required: true,
			fields: &fieldSet{excludedFields: []string{queue.NotEdited}, edit: true},
		}),
		reflect.TypeFor[Retry](): selection(free("only",
			"retry only the selected jobs, not the jobs that were cancelled because the selected jobs failed")),
		reflect.TypeFor[Remove](): selection(free("force", "end running jobs, then remove them")),
		reflect.TypeFor[DLQRetry](): {[]param{
			opt("id", "id of a dead job", notEmpty),
			opt("ids", "ids of dead jobs", nonEmpty(atMost(MaxNames))),
			free("all", "all dead jobs"),
			batchLabel,
			opt("timeout", "new timeout for each attempt of the jobs", duration),
			dryRun, pageCursor,
		}, []group{exactlyOneOf(`no jobs given; set parameter "id", "ids", "batch" or "all"`,
			[]string{"ids", "id"}, []string{"all", "batch"})}},
		reflect.TypeFor[ClearParams](): {[]param{
			free("yes", "confirms that the jobs are removed permanently; not needed with dry_run"),
			batchLabel, dryRun,
		}, []group{anyOf(clearAll, "yes", "dry_run")}},
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
	settings := []param{
		opt("concurrency", "maximum number of running jobs of the queue; 0 means unlimited", between(0, queue.MaxDemand)),
		opt("weight", "weight of the queue: with weight 2 it starts twice as many jobs as a queue with weight 1",
			between(1, maxWeight)),
		opt("max_pending", "maximum number of waiting jobs of the queue; 0 means unlimited", keep),
		{name: "default", doc: "object with default job fields for this queue; null removes a default",
			fields: &fieldSet{excludedFields: notQueueDefaults}},
		free("retention", "when to remove completed and cancelled jobs: after a duration, never, or default "+
			"(as in the settings)"),
		opt("retention_max_jobs", "maximum number of ended jobs to keep; 0 means the value in the settings", keep),
		opt("retention_output", "maximum bytes of output to keep for all ended jobs of the queue together; 0 means the "+
			"value in the settings",
			between(0, maxBytes)),
	}
	var names []string
	for _, p := range settings {
		names = append(names, p.name)
	}
	nothing := "no changes given; set at least one of the parameters " + quoted(names)
	oneOrAll := exactlyOneOf(`no queue given; set parameter "name", or set parameter "all" to true`,
		[]string{"name"}, []string{"all"})
	all := free("all", "all queues")
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[Queues](): {params: []param{
			opt("after", `field "next" of the previous answer, to get the next page`, queueName),
		}},
		reflect.TypeFor[QueueSet](): {append([]param{need("name", "name of the queue",
			queueName)}, settings...), []group{anyOf(nothing, names...)}},
		reflect.TypeFor[QueuePause](): {[]param{
			opt("name", "name of the queue", queueName), all,
			opt("reason", "reason for the pause, which is shown to users", upTo(queue.MaxLabel)),
			free("until", "resume the queue at this time"),
			opt("for", "resume the queue after this duration", positiveDuration),
			free("freeze", "also freeze running jobs"),
		}, []group{
			oneOrAll,
			excludes(`cannot be combined with parameter "until"; use one of them`, []string{"for"}, []string{"until"}),
			excludes(`a pause that freezes jobs lasts until the queue is resumed; leave out parameters "until" and "for"`,
				[]string{"freeze"}, []string{"until", "for"}),
		}},
		reflect.TypeFor[QueueName](): {[]param{opt("name", "name of the queue",
			queueName), all}, []group{oneOrAll}},
		reflect.TypeFor[QueueRemove](): {params: []param{need("name", "name of the queue", queueName)}},
		reflect.TypeFor[StatsParams](): {[]param{
			opt("queue", "only the statistics of this queue", queueName),
			free("since", "start of the time range (default: 24 hours ago)"),
			free("until", "end of the time range (default: now)"),
			opt("by", "also return statistics for each minute, hour or day", words("minute", "hour", "day")),
			free("buckets", "also return histograms of waiting times and run times"),
			free("ever", "all statistics ever recorded, instead of a time range"),
		}, []group{excludes(`covers all queues and all times; leave out parameters "queue", "since", "until" and "by"`,
			[]string{"ever"}, []string{"queue", "since", "until", "by"})}},
	}
}

// cursorParam returns the cursor parameter of a list.
func cursorParam(c queue.Constraint) []param {
	return []param{opt("cursor", `field "next" of the previous answer, to get the next page`, c)}
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
			need("key", "shared key, which begins with @", matching(key)),
			opt("lock", "maximum number of jobs with this key that run at the same time", between(1, queue.MaxDemand)),
			opt("rate", "maximum number of jobs with this key that start per period, such as 10/m", matching(rate)),
			opt("unset", "rule to remove from the key: lock or rate", words("lock", "rate")),
		}, []group{
			exactlyOneOf(`no rule given; set parameter "lock", "rate" or "unset"`,
				[]string{"lock"}, []string{"rate", "unset"}),
			excludes(`cannot be combined with parameter "unset"; use one of them`, []string{"rate"}, []string{"unset"}),
		}},
		reflect.TypeFor[Gates](): {params: cursorParam(queue.Constraint{Text: gateCursor, MaxBytes: maxGate})},
	}
}

// workerRules returns the rulesets of methods for workers and nodes.
func workerRules() map[reflect.Type]*ruleset {
	drain := []group{excludes(`cannot be combined with parameter "off"; use one of them`,
		[]string{"wait"}, []string{"off"})}
	off := free("off", "end the drain, so that jobs can start again")
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[Nodes](): {params: cursorParam(queue.Constraint{NotEmpty: true, MaxBytes: maxUser})},
		reflect.TypeFor[Count](): {params: []param{opt("count", "number of workers to add (default: 1)",
			between(1, MaxWorkers))}},
		reflect.TypeFor[WorkerScale](): {params: []param{need("count", "new number of workers", between(0, MaxWorkers))}},
		reflect.TypeFor[WorkerStop](): {[]param{
			opt("count", "number of workers to remove (default: all)", between(1, MaxWorkers)),
			free("all", "remove all workers"),
			opt("timeout", "time for running jobs to finish (default: 30s)", duration),
			free("force", "end running jobs immediately"),
		}, []group{excludes(`cannot be combined with parameter "all"; use one of them`, []string{"count"}, []string{"all"})}},
		reflect.TypeFor[NodeName](): {params: []param{need("name", "name of the node", entityName)}},
		reflect.TypeFor[NodeDrain](): {[]param{need("name", "name of the node",
			entityName), off, free("wait", "send the response only when no job is running on the node")}, drain},
		reflect.TypeFor[Drain](): {[]param{off, free("wait", "send the response only when no job is running")}, drain},
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
	name := need("name", "name of the schedule", entityName)
	form := &queue.Form{Pattern: `^[A-Za-z0-9][A-Za-z0-9._@/-]{0,99}$`, Valid: validSchedule,
		Description: "a valid schedule name; use 1 to 100 characters from A-Z a-z 0-9 . _ @ / -, the first a letter or digit"}
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[ScheduleAdd](): {params: []param{
			need("name", "name of the schedule", matching(form)),
			need("cron", "cron expression: five fields, six with seconds first, @hourly and the like, @every "+
				"DURATION or @reboot",
				notEmpty),
			opt("tz", "time zone, such as Europe/Berlin (default: the time zone of the machine)", notEmpty),
			opt("jitter", "maximum delay added to each start; the delay is computed from the schedule's name "+
				"and the planned time",
				between(0, MaxJitter.Seconds())),
			opt("catch_up", "how many jobs to start for missed occurrences: none, one or all (default: none)",
				words("none", "one", "all")),
			opt("overlap", "what to do if the previous job has not ended: skip, queue or replace (default: skip)",
				words("skip", "queue", "replace")),
			free("replace", "replace an existing schedule with this name"),
			free("require_limits", "refuse jobs with a limit that this machine cannot enforce"),
		}},
		reflect.TypeFor[ScheduleName](): {params: []param{name}},
		reflect.TypeFor[ScheduleList](): {params: []param{cursorParam(upTo(maxUser))[0]}},
		reflect.TypeFor[HookName](): {params: []param{
			need("name", "name of a webhook, or of a hook in the settings such as on_dead", notEmpty),
		}},
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
	key := need("key", "name of the setting", notEmpty)
	var kinds []string
	for _, k := range queue.EventKinds() {
		kinds = append(kinds, string(k))
	}
	event := opt("event", "only events of these kinds", queue.Constraint{Enum: kinds, MaxItems: MaxTexts})
	event.marks = []mark{{audited, func(v reflect.Value) bool {
		texts, _ := v.Interface().(Texts)
		return slices.Contains(texts, string(queue.EventAudit))
	}, containsWord(string(queue.EventAudit))}}
	ended := slices.DeleteFunc(slices.Clone(queue.States()), func(s queue.State) bool { return !s.Ended() })
	return map[reflect.Type]*ruleset{
		reflect.TypeFor[Nothing]():     {},
		reflect.TypeFor[HelloParams](): {params: []param{free("version", "name and version of the client")}},
		reflect.TypeFor[WebStart](): {params: []param{
			free("listen", "address to listen on: ADDRESS:PORT or unix:/PATH (default: as in the settings, or 127.0.0.1:7070)"),
		}},
		reflect.TypeFor[ConfigKey](): {params: []param{key}},
		reflect.TypeFor[ConfigSet](): {params: []param{key, need("value", "new value: text, a number, true or false",
			queue.Constraint{NotEmpty: true, MaxBytes: MaxScalar, Note: "; use config.unset to restore the default"})}},
		reflect.TypeFor[Events](): {[]param{
			opt("since", "only events with a number higher than this value", between(0, maxSequence)),
			free("follow", "keep sending events as they happen"),
			free("from", "only events that happened at this time or later"),
			free("until", "only events that happened before this time"),
			opt("id", "only events of these jobs", atMost(MaxWaits)),
			event,
			free("audit", "also list audit events: who did what, how and to what (admins only)"),
		}, []group{
			excludes(`works only for past events; leave out parameter "follow"`, []string{"until"}, []string{"follow"}),
			requires(`the kind "audit" works only with parameter "audit"; set both (admins only)`,
				[]string{audited}, []string{"audit"}),
		}},
		reflect.TypeFor[Cleanup](): {params: []param{
			opt("days", "remove jobs that ended at least this many days ago (default: 7)", between(0, maxCleanup)),
			opt("state", "remove jobs in these states (default: completed and cancelled)",
				queue.Constraint{Enum: stateWords(ended, "done"), MaxItems: MaxTexts}),
			opt("keep", "keep this many of the newest selected jobs, whatever their state",
				between(0, maxCount)),
			free("dry_run", "count the jobs without removing them"),
		}},
		reflect.TypeFor[Doctor](): {params: []param{free("verify", "check the whole database and the output files")}},
		reflect.TypeFor[ServiceStop](): {params: []param{free("keep_jobs",
			"let running jobs continue while the service is stopped")}},
	}
}
