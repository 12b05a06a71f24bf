// Command queuectld is the service, the long-lived process that owns the queue. It also implements the commands
// that need large libraries. Users call queuectl, which executes queuectld for these commands.
package main

import (
	"context"
	"os"
	_ "time/tzdata" // embeds the zone database, for machines without zone files

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/admin"
	"github.com/queuectl/queuectl/internal/cli/help"
	"github.com/queuectl/queuectl/internal/cli/private"
	"github.com/queuectl/queuectl/internal/zone"
	"github.com/queuectl/queuectl/service"
)

// app is the command line of queuectl with the additional commands of queuectld.
// See docs/decisions/0079.
type app struct{ *cli.App }

// verbs lists the commands that only this program implements.
var verbs = []cli.Verb{
	{Name: "backup", BuildCommand: admin.BackupVerb},
	{Name: "restore", BuildCommand: withApp(restoreVerb)},
	{Name: "migrate", BuildCommand: withApp(migrateVerb)},
	{Name: "doctor", BuildCommand: withApp(doctorVerb)},
	{Name: "serve", BuildCommand: withApp(serveVerb)},
	{Name: "service", BuildCommand: withApp(serviceVerb)},
	{Name: "man", BuildCommand: withApp(manVerb)},
	{Name: "schema", BuildCommand: admin.SchemaVerb}, {Name: "completion", BuildCommand: admin.CompletionVerb},
	{Name: "drain", BuildCommand: admin.DrainVerb},
	{Name: "schedule", BuildCommand: admin.ScheduleVerb},
	{Name: "config", BuildCommand: admin.ConfigVerb},
	{Name: "gate", BuildCommand: admin.GateVerb},
	{Name: "node", BuildCommand: admin.NodeVerb},
	{Name: "hook", BuildCommand: admin.HookVerb},
	{Name: "web", BuildCommand: admin.WebVerb},
	{Name: "metrics", BuildCommand: withApp(metricsVerb)},
	{Name: "mcp", BuildCommand: withApp(mcpVerb)},
	{Name: "top", BuildCommand: withApp(topVerb)},
	{Name: "queue", BuildCommand: admin.QueueVerb},
	{Name: "tree", BuildCommand: admin.TreeVerb},
	{Name: "simulate", BuildCommand: admin.SimulateVerb},
	{Name: "stats", BuildCommand: admin.StatsVerb},
	{Name: "edit", BuildCommand: admin.EditVerb},
	{Name: "whoami", BuildCommand: admin.WhoamiVerb},
	{Name: "cleanup", BuildCommand: admin.CleanupVerb},
	{Name: "reload", BuildCommand: admin.ReloadVerb},
	{Name: "events", BuildCommand: admin.EventsVerb},
}

// withApp adapts a function that takes an *app to Verb.Build, which takes a *cli.App.
func withApp(build func(*app) *cobra.Command) func(*cli.App) *cobra.Command {
	return func(a *cli.App) *cobra.Command { return build(&app{a}) }
}

func main() {
	// With this argument, the program is a job of the service that posts one webhook.
	if len(os.Args) == 2 && os.Args[1] == webhookArg {
		os.Exit(postWebhook(context.Background(), os.Stdin, os.Stdout, os.Stderr, os.Getenv))
	}
	cli.Main(cli.Program{Verbs: verbs, ServePrivate: servePrivateRun, RunPrivate: private.Run,
		OpenOffline:  openOfflineClient,
		JoinTerminal: (*cli.App).JoinTerminal, EachTOMLJob: admin.EachTOMLJob, HelpFunc: help.HelpFunc,
		LoadTimeZone: zone.FromTZ})
}

// openOfflineClient returns a client that reads the queue's files directly. It is for use while no service runs.
func openOfflineClient(ctx context.Context, c *cli.App, stateDir string) (*control.Client, error) {
	return service.OpenOffline(ctx, service.Options{Paths: config.PathsInDir(stateDir), Version: cli.Version,
		LogFile: c.Stderr})
}
