package admin

import (
	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/input"
)

// WebVerb returns the command web. Only queuectld links it, to keep queuectl small.
func WebVerb(a *cli.App) *cobra.Command {
	var p control.WebStart
	start := cli.RequestVerb(a, "start", "Start the web dashboard and print its address", (*control.Client).WebStart, &p,
		func(v control.WebState) error {
			a.PrintInfo("the web dashboard listens on %s; get a sign-in link with: queuectl web open", v.Listen)
			return a.Println(v.Listen)
		})
	start.Flags().Var(input.NonEmptyValue(&p.Listen), "listen",
		"listen on `ADDRESS:PORT` or unix:/PATH (default: the setting web.listen, or 127.0.0.1:7070)")
	stop := cli.RequestVerb(a, "stop", "Stop the web dashboard", (*control.Client).WebStop, &control.NoParams{},
		func(control.WebState) error { return a.PrintInfo("the web dashboard is off") })
	open := cli.RequestVerb(a, "open", "Print a sign-in link, valid once and for one minute", (*control.Client).WebOpen,
		&control.NoParams{}, func(v control.WebLink) error {
			a.PrintInfo("open this link within a minute; it works once:")
			return a.Println(v.URL)
		})
	return cli.GroupCommand("web", "Start, stop and open the web dashboard", start, stop, open)
}
