// Command queuectld is the service, the long-lived process that owns the queue. It also implements the commands
// that need large libraries. Users call queuectl, which executes queuectld for these commands.
package main

import (
	"context"
	"io"
	"os"
	_ "time/tzdata" // embeds the zone database, for machines without zone files

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/config/tomlfile"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/admin"
	"github.com/queuectl/queuectl/internal/cli/help"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/private"
	"github.com/queuectl/queuectl/internal/zone"
	"github.com/queuectl/queuectl/service"
)

// app is the command line of queuectl with the additional commands of queuectld.
// See docs/decisions/0079.
type app struct{ *cli.App }

// verbs lists the commands that only this program implements.
var verbs = []cli.Verb{
	{Name: "backup", Build: admin.BackupVerb},
	{Name: "restore", Build: withApp(restoreVerb)},
	{Name: "migrate", Build: withApp(migrateVerb)},
	{Name: "doctor", Build: withApp(doctorVerb)},
	{Name: "serve", Build: withApp(serveVerb)},
	{Name: "service", Build: withApp(serviceVerb)},
	{Name: "man", Build: withApp(manVerb)},
	{Name: "schema", Build: admin.SchemaVerb}, {Name: "completion", Build: admin.CompletionVerb},
	{Name: "drain", Build: admin.DrainVerb},
	{Name: "schedule", Build: admin.ScheduleVerb},
	{Name: "config", Build: admin.ConfigVerb},
	{Name: "gate", Build: admin.GateVerb},
	{Name: "node", Build: admin.NodeVerb},
	{Name: "hook", Build: admin.HookVerb},
	{Name: "web", Build: admin.WebVerb},
	{Name: "metrics", Build: withApp(metricsVerb)},
	{Name: "mcp", Build: withApp(mcpVerb)},
	{Name: "top", Build: withApp(topVerb)},
	{Name: "queue", Build: admin.QueueVerb},
	{Name: "tree", Build: admin.TreeVerb},
	{Name: "simulate", Build: admin.SimulateVerb},
	{Name: "stats", Build: admin.StatsVerb},
	{Name: "edit", Build: admin.EditVerb},
	{Name: "whoami", Build: admin.WhoamiVerb},
	{Name: "cleanup", Build: admin.CleanupVerb},
	{Name: "reload", Build: admin.ReloadVerb},
	{Name: "events", Build: admin.EventsVerb},
}

// eachTOMLJob calls handleJob with each job in a TOML file.
func eachTOMLJob(fileName string, tomlFile io.Reader, handleJob func(raw []byte, line int) error) error {
	return input.EachTOMLJob(tomlfile.ParseTables, fileName, tomlFile, handleJob)
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
		JoinTerminal: (*cli.App).JoinTerminal, EachTOMLJob: eachTOMLJob, HelpFunc: help.HelpFunc, LoadZone: zone.FromTZ})
}

// openOfflineClient returns a client that reads the queue's files directly. It is for use while no service runs.
func openOfflineClient(ctx context.Context, c *cli.App, stateDir string) (*control.Client, error) {
	return service.OpenOffline(ctx, service.Options{Paths: config.PathsInDir(stateDir), Version: cli.Version,
		LogFile: c.Stderr})
}
