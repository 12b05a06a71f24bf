package cli

import (
	"cmp"
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

// verbTable returns the table of commands. A row without Group belongs to the group of the row above it. Building the
// table takes little time, because its rows contain only constants and functions.
func verbTable() []Verb {
	return []Verb{
		{Group: "Jobs:", Name: "enqueue", BuildCommand: enqueueVerb, Alias: "add"},
		{Name: "run", BuildCommand: runVerb, ExitsWithJobCode: true},
		{Name: "attach", BuildCommand: attachVerb, ExitsWithJobCode: true},
		{Name: "wait", BuildCommand: waitVerb, ExitsWithJobCode: true},
		{Name: "progress", BuildCommand: progressVerb, AllowsUnknownTZ: true},
		{Name: "edit", Short: "Change waiting jobs with flags, JSON or $EDITOR"},
		{Name: "retry", BuildCommand: retryVerb, Alias: "rerun", AllowsUnknownTZ: true},
		{Name: "cancel", BuildCommand: cancelVerb, AllowsUnknownTZ: true},
		{Name: "rm", BuildCommand: rmVerb, AllowsUnknownTZ: true},
		{Name: "dequeue", BuildCommand: dequeueVerb},

		{Group: "Status and output:", Name: "status", BuildCommand: statusVerb},
		{Name: "top", Short: "Show a live screen of all jobs, with keys to control them",
			Alias: "ui"},
		{Name: "list", BuildCommand: listVerb, Alias: "ls"},
		{Name: "ps", BuildCommand: psVerb},
		{Name: "show", BuildCommand: showVerb},
		{Name: "logs", BuildCommand: logsVerb, Alias: "log"},
		{Name: "why", BuildCommand: whyVerb},
		{Name: "tree", Short: "Show the dependencies and dependants of a job as a tree"},
		{Name: "simulate", Short: "List the jobs that would start if workers were free"},
		{Name: "stats", Short: "Show statistics: outcomes, waiting times, run times"},
		{Name: "events", Short: "Print past events, or follow new ones with -f"},
		{Name: "dlq", BuildCommand: dlqVerb},
		{Name: "whoami", Short: "Show your identity and rights", AllowsUnknownTZ: true},

		{Group: "Control:", Name: "worker", BuildCommand: workerVerb},
		{Name: "hold", BuildCommand: holdVerb, AllowsUnknownTZ: true},
		{Name: "release", BuildCommand: releaseVerb, AllowsUnknownTZ: true},
		{Name: "pause", BuildCommand: pauseVerb},
		{Name: "resume", BuildCommand: resumeVerb, AllowsUnknownTZ: true},
		{Name: "requeue", BuildCommand: requeueVerb, AllowsUnknownTZ: true},
		{Name: "kill", BuildCommand: killVerb, AllowsUnknownTZ: true},
		{Name: "drain", Short: "Start no new jobs until drain --off, even after a restart",
			AllowsUnknownTZ: true},
		{Name: "clear", BuildCommand: clearVerb, AllowsUnknownTZ: true},
		{Name: "cleanup", Short: "Remove old finished jobs and their history"},

		{Group: "Queues and schedules:", Name: "queue", Short: "Configure, pause and list named queues"},
		{Name: "schedule", Short: "Manage recurring jobs"},
		{Name: "gate", Short: "List locks, rate limits and resources; set shared limits",
			AllowsUnknownTZ: true},
		{Name: "hook", Short: "Test hooks and webhooks", AllowsUnknownTZ: true},

		{Group: "Service:", Name: "service", Short: "Install, start, stop and check the service",
			AllowsUnknownTZ: true},
		{Name: "serve", Short: "Run the service in the foreground"},
		{Name: "node", Short: "List, drain and remove the nodes that share a queue"},
		{Name: "config", Short: "Show and change the settings of the service",
			AllowsUnknownTZ: true},
		{Name: "reload", Short: "Reload the settings file of the service", AllowsUnknownTZ: true},
		{Name: "doctor", Short: "Diagnose problems with the queue, disk, service and runners"},
		{Name: "backup", Short: "Back up the whole queue to one file while it is in use"},
		{Name: "restore", Short: "Restore the queue from a backup (stop the service first)"},
		{Name: "migrate", Short: "Move the queue to another database (stop the service first)"},
		{Name: "web", Short: "Start, stop and open the web dashboard"},
		{Name: "metrics", Short: "Print metrics in the Prometheus format", AllowsUnknownTZ: true},
		{Name: "mcp", Short: "Offer the queue to coding agents (Model Context Protocol)",
			AllowsUnknownTZ: true},

		{Group: "Other:", Name: "completion", Short: "Print a shell completion script", AllowsUnknownTZ: true},
		{Name: "man", Short: "Write the manual pages to a directory", AllowsUnknownTZ: true},
		{Name: "schema", Short: "Print the JSON Schemas of the protocol methods",
			AllowsUnknownTZ: true},
		{Name: "init", BuildCommand: initVerb, AllowsUnknownTZ: true},
		{Name: "version", BuildCommand: versionVerb, AllowsUnknownTZ: true},
	}
}

// mergeVerbs returns the table of commands, completed with the rows of one program. If the table already has a row of
// the same name, only its field BuildCommand is set to that of the program's row. Otherwise the program's row is added
// at the end.
func mergeVerbs(programVerbs []Verb) []Verb {
	list := verbTable()
	for i := range list {
		list[i].Group = cmp.Or(list[i].Group, list[max(i-1, 0)].Group)
	}
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
