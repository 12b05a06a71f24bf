package input

import (
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// fieldGroup is a group of job flags in the help.
type fieldGroup struct {
	Title  string
	fields string // the fields that the flags set, with a space before and after each name
}

// FieldGroups lists the groups of job flags, in the order of the help.
var FieldGroups = []fieldGroup{
	{"What to run", " id command cwd umask shell env env_pass env_secret mask_secrets stdin stdin_file tty user "},
	{"Start time and order", " priority run_at delay expires_at "},
	{"Timeouts, retries and exit codes", " timeout timeout_ms idle_timeout kill_after max_retries max_attempts " +
		"backoff_base backoff_strategy backoff_max jitter ok_codes no_retry_codes defer_codes on_lost allow_background "},
	{"Commands to run afterwards", " on_completed on_failed on_dead on_ended "},
	{QueuesAndLocksGroup, " queue depends_on on_dependency_failure lock rate_limit on resources unique unique_for " +
		"on_conflict "},
	{ResourceLimitsGroup, " memory cpus tasks nice nofile no_new_privileges output_limit "},
}

// FlagGroupAnnotation is the flag annotation that contains the theme of a flag. ResourceLimitsGroup and
// QueuesAndLocksGroup are the themes of some flags that set no field of a job.
const (
	FlagGroupAnnotation = "theme"
	ResourceLimitsGroup = "Resource limits"
	QueuesAndLocksGroup = "Queues, dependencies and locks"
)

// groupOfField returns the theme of a field's flag, or "" if it has none.
func groupOfField(f *queue.Field) string {
	for _, t := range FieldGroups {
		if strings.Contains(t.fields, " "+f.Name+" ") {
			return t.Title
		}
	}
	return ""
}
