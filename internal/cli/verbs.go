package cli

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
)

// Verb is one row of the table of commands. Build creates the command. Root calls Build only for the
// requested command, because building all commands takes longer than enqueuing a job.
type Verb struct {
	Name  string
	Build func(a *App) *cobra.Command // builds the command; nil if only queuectld implements it
	Short string                      // one-line description, set if Build is nil
	Alias string                      // second name of the command; "" without one
	Group string                      // heading in the help under which the command is listed
	// AllowsUnknownTZ says that an unknown zone in TZ is not an error, because the command uses no local times.
	AllowsUnknownTZ bool
	// ExitsWithJobCode says that the exit code of the command is the exit code of a job. Such a command uses the exit code
	// fault.ExitCodeFailure for all failures of queuectl itself, including usage errors.
	ExitsWithJobCode bool
}

// These are the headings of the command groups in the help.
const (
	helpGroupJobs    = "Jobs:"
	helpGroupOutput  = "Status and output:"
	helpGroupControl = "Control:"
	helpGroupQueues  = "Queues and schedules:"
	helpGroupService = "Service:"
	helpGroupOther   = "Other:"
)

// verbTable returns the table of commands. Building the table takes little time, because its rows contain
// only constants and functions.
func verbTable() []Verb {
	return []Verb{
		{Group: helpGroupJobs, Name: "enqueue", Build: enqueueVerb, Alias: "add"},
		{Group: helpGroupJobs, Name: "run", Build: runVerb, ExitsWithJobCode: true},
		{Group: helpGroupJobs, Name: "attach", Build: attachVerb, ExitsWithJobCode: true},
		{Group: helpGroupJobs, Name: "wait", Build: waitVerb, ExitsWithJobCode: true},
		{Group: helpGroupJobs, Name: "progress", Build: progressVerb, AllowsUnknownTZ: true},
		{Group: helpGroupJobs, Name: "edit", Short: "Change waiting jobs with flags, JSON or $EDITOR"},
		{Group: helpGroupJobs, Name: "retry", Build: retryVerb, Alias: "rerun", AllowsUnknownTZ: true},
		{Group: helpGroupJobs, Name: "cancel", Build: cancelVerb, AllowsUnknownTZ: true},
		{Group: helpGroupJobs, Name: "rm", Build: rmVerb, AllowsUnknownTZ: true},
		{Group: helpGroupJobs, Name: "dequeue", Build: dequeueVerb},

		{Group: helpGroupOutput, Name: "status", Build: statusVerb},
		{Group: helpGroupOutput, Name: "top", Short: "Show a live screen of all jobs, with keys to control them",
			Alias: "ui"},
		{Group: helpGroupOutput, Name: "list", Build: listVerb, Alias: "ls"},
		{Group: helpGroupOutput, Name: "ps", Build: psVerb},
		{Group: helpGroupOutput, Name: "show", Build: showVerb},
		{Group: helpGroupOutput, Name: "logs", Build: logsVerb, Alias: "log"},
		{Group: helpGroupOutput, Name: "why", Build: whyVerb},
		{Group: helpGroupOutput, Name: "tree", Short: "Show the dependencies and dependants of a job as a tree"},
		{Group: helpGroupOutput, Name: "simulate", Short: "List the jobs that would start if workers were free"},
		{Group: helpGroupOutput, Name: "stats", Short: "Show statistics: outcomes, waiting times, run times"},
		{Group: helpGroupOutput, Name: "events", Short: "Print past events, or follow new ones with -f"},
		{Group: helpGroupOutput, Name: "dlq", Build: dlqVerb},
		{Group: helpGroupOutput, Name: "whoami", Short: "Show your identity and rights", AllowsUnknownTZ: true},

		{Group: helpGroupControl, Name: "worker", Build: workerVerb},
		{Group: helpGroupControl, Name: "hold", Build: holdVerb, AllowsUnknownTZ: true},
		{Group: helpGroupControl, Name: "release", Build: releaseVerb, AllowsUnknownTZ: true},
		{Group: helpGroupControl, Name: "pause", Build: pauseVerb},
		{Group: helpGroupControl, Name: "resume", Build: resumeVerb, AllowsUnknownTZ: true},
		{Group: helpGroupControl, Name: "requeue", Build: requeueVerb, AllowsUnknownTZ: true},
		{Group: helpGroupControl, Name: "kill", Build: killVerb, AllowsUnknownTZ: true},
		{Group: helpGroupControl, Name: "drain", Short: "Start no new jobs until drain --off, even after a restart",
			AllowsUnknownTZ: true},
		{Group: helpGroupControl, Name: "clear", Build: clearVerb, AllowsUnknownTZ: true},
		{Group: helpGroupControl, Name: "cleanup", Short: "Remove old finished jobs and their history"},

		{Group: helpGroupQueues, Name: "queue", Short: "Configure, pause and list named queues"},
		{Group: helpGroupQueues, Name: "schedule", Short: "Manage recurring jobs"},
		{Group: helpGroupQueues, Name: "gate", Short: "List locks, rate limits and resources; set shared limits",
			AllowsUnknownTZ: true},
		{Group: helpGroupQueues, Name: "hook", Short: "Test hooks and webhooks", AllowsUnknownTZ: true},

		{Group: helpGroupService, Name: "service", Short: "Install, start, stop and check the service",
			AllowsUnknownTZ: true},
		{Group: helpGroupService, Name: "serve", Short: "Run the service in the foreground"},
		{Group: helpGroupService, Name: "node", Short: "List, drain and remove the nodes that share a queue"},
		{Group: helpGroupService, Name: "config", Short: "Show and change the settings of the service",
			AllowsUnknownTZ: true},
		{Group: helpGroupService, Name: "reload", Short: "Reload the settings file of the service", AllowsUnknownTZ: true},
		{Group: helpGroupService, Name: "doctor", Short: "Diagnose problems with the queue, disk, service and runners"},
		{Group: helpGroupService, Name: "backup", Short: "Back up the whole queue to one file while it is in use"},
		{Group: helpGroupService, Name: "restore", Short: "Restore the queue from a backup (stop the service first)"},
		{Group: helpGroupService, Name: "migrate", Short: "Move the queue to another database (stop the service first)"},
		{Group: helpGroupService, Name: "web", Short: "Start, stop and open the web dashboard"},
		{Group: helpGroupService, Name: "metrics", Short: "Print metrics in the Prometheus format", AllowsUnknownTZ: true},
		{Group: helpGroupService, Name: "mcp", Short: "Offer the queue to coding agents (Model Context Protocol)",
			AllowsUnknownTZ: true},

		{Group: helpGroupOther, Name: "completion", Short: "Print a shell completion script", AllowsUnknownTZ: true},
		{Group: helpGroupOther, Name: "man", Short: "Write the manual pages to a directory", AllowsUnknownTZ: true},
		{Group: helpGroupOther, Name: "schema", Short: "Print the JSON Schemas of the protocol methods",
			AllowsUnknownTZ: true},
		{Group: helpGroupOther, Name: "init", Build: initVerb, AllowsUnknownTZ: true},
		{Group: helpGroupOther, Name: "version", Build: versionVerb, AllowsUnknownTZ: true},
	}
}

// mergeVerbs returns the table of commands, completed with the rows of one program. If the table already has a row of
// the same name, only its field Build is set to that of the program's row. Otherwise the program's row is added at the
// end.
func mergeVerbs(programVerbs []Verb) []Verb {
	list := verbTable()
	for _, v := range programVerbs {
		if i := slices.IndexFunc(list, func(w Verb) bool { return w.Name == v.Name }); i >= 0 {
			list[i].Build = v.Build
		} else {
			list = append(list, v)
		}
	}
	return list
}

func initVerb(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "init", Short: "Do nothing: the first job creates the queue", Args: ExactArgs(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			if a.WantsJSON() {
				return a.PrintJSON(map[string]bool{"done": true})
			}
			return a.Println("nothing to do: the first job creates the queue; try: queuectl enqueue 'echo hello'")
		},
	}
}

// Version is the version of both programs. The release build sets it.
var Version = "0.1.0-dev"

func versionVerb(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: ExactArgs(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			if a.JSON || a.JSONL {
				return a.PrintJSON(map[string]any{"version": Version, "protocol": control.ProtocolVersion})
			}
			return a.Println("queuectl " + Version)
		},
	}
}
