package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
)

// Verb is one row of the table of commands. BuildCommand creates the command. Root calls BuildCommand only for the
// requested command, because building all commands takes longer than enqueuing a job.
type Verb struct {
	Name         string
	BuildCommand func(a *App) *cobra.Command // builds the command; nil if only queuectld implements it
	Short        string                      // one-line description, set if BuildCommand is nil
	Alias        string                      // second name of the command; "" without one
	Group        string                      // heading in the help under which the command is listed
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
		{Group: helpGroupJobs, Name: "enqueue", BuildCommand: enqueueVerb, Alias: "add"},
		{Group: helpGroupJobs, Name: "run", BuildCommand: runVerb, ExitsWithJobCode: true},
		{Group: helpGroupJobs, Name: "attach", BuildCommand: attachVerb, ExitsWithJobCode: true},
		{Group: helpGroupJobs, Name: "wait", BuildCommand: waitVerb, ExitsWithJobCode: true},
		{Group: helpGroupJobs, Name: "progress", BuildCommand: progressVerb, AllowsUnknownTZ: true},
		{Group: helpGroupJobs, Name: "edit", Short: "Change waiting jobs with flags, JSON or $EDITOR"},
		{Group: helpGroupJobs, Name: "retry", BuildCommand: retryVerb, Alias: "rerun", AllowsUnknownTZ: true},
		{Group: helpGroupJobs, Name: "cancel", BuildCommand: cancelVerb, AllowsUnknownTZ: true},
		{Group: helpGroupJobs, Name: "rm", BuildCommand: rmVerb, AllowsUnknownTZ: true},
		{Group: helpGroupJobs, Name: "dequeue", BuildCommand: dequeueVerb},

		{Group: helpGroupOutput, Name: "status", BuildCommand: statusVerb},
		{Group: helpGroupOutput, Name: "top", Short: "Show a live screen of all jobs, with keys to control them",
			Alias: "ui"},
		{Group: helpGroupOutput, Name: "list", BuildCommand: listVerb, Alias: "ls"},
		{Group: helpGroupOutput, Name: "ps", BuildCommand: psVerb},
		{Group: helpGroupOutput, Name: "show", BuildCommand: showVerb},
		{Group: helpGroupOutput, Name: "logs", BuildCommand: logsVerb, Alias: "log"},
		{Group: helpGroupOutput, Name: "why", BuildCommand: whyVerb},
		{Group: helpGroupOutput, Name: "tree", Short: "Show the dependencies and dependants of a job as a tree"},
		{Group: helpGroupOutput, Name: "simulate", Short: "List the jobs that would start if workers were free"},
		{Group: helpGroupOutput, Name: "stats", Short: "Show statistics: outcomes, waiting times, run times"},
		{Group: helpGroupOutput, Name: "events", Short: "Print past events, or follow new ones with -f"},
		{Group: helpGroupOutput, Name: "dlq", BuildCommand: dlqVerb},
		{Group: helpGroupOutput, Name: "whoami", Short: "Show your identity and rights", AllowsUnknownTZ: true},

		{Group: helpGroupControl, Name: "worker", BuildCommand: workerVerb},
		{Group: helpGroupControl, Name: "hold", BuildCommand: holdVerb, AllowsUnknownTZ: true},
		{Group: helpGroupControl, Name: "release", BuildCommand: releaseVerb, AllowsUnknownTZ: true},
		{Group: helpGroupControl, Name: "pause", BuildCommand: pauseVerb},
		{Group: helpGroupControl, Name: "resume", BuildCommand: resumeVerb, AllowsUnknownTZ: true},
		{Group: helpGroupControl, Name: "requeue", BuildCommand: requeueVerb, AllowsUnknownTZ: true},
		{Group: helpGroupControl, Name: "kill", BuildCommand: killVerb, AllowsUnknownTZ: true},
		{Group: helpGroupControl, Name: "drain", Short: "Start no new jobs until drain --off, even after a restart",
			AllowsUnknownTZ: true},
		{Group: helpGroupControl, Name: "clear", BuildCommand: clearVerb, AllowsUnknownTZ: true},
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
		{Group: helpGroupOther, Name: "init", BuildCommand: initVerb, AllowsUnknownTZ: true},
		{Group: helpGroupOther, Name: "version", BuildCommand: versionVerb, AllowsUnknownTZ: true},
	}
}

// mergeVerbs returns the table of commands, completed with the rows of one program. If the table already has a row of
// the same name, only its field BuildCommand is set to that of the program's row. Otherwise the program's row is added
// at the end.
func mergeVerbs(programVerbs []Verb) []Verb {
	list := verbTable()
	for _, v := range programVerbs {
		if i := slices.IndexFunc(list, func(w Verb) bool { return w.Name == v.Name }); i >= 0 {
			list[i].BuildCommand = v.BuildCommand
		} else {
			list = append(list, v)
		}
	}
	return list
}

func initVerb(a *App) *cobra.Command {
	return NewCommand("init", "Do nothing: the first job creates the queue", NoArgs,
		func(_ context.Context, _ []string) error {
			if a.WantsJSON() {
				return a.PrintJSON(map[string]bool{"done": true})
			}
			return a.Println("nothing to do: the first job creates the queue; try: queuectl enqueue 'echo hello'")
		})
}

// Version is the version of both programs. The release build sets it.
var Version = "0.1.0-dev"

func versionVerb(a *App) *cobra.Command {
	return NewCommand("version", "Print the version", NoArgs, func(_ context.Context, _ []string) error {
		if a.JSON || a.JSONL {
			return a.PrintJSON(map[string]any{"version": Version, "protocol": control.ProtocolVersion})
		}
		return a.Println("queuectl " + Version)
	})
}
