package admin

import (
	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/input"
)

// WebVerb returns the command web. Only queuectld links it, to keep queuectl small.
func WebVerb(app *cli.App) *cobra.Command {
	a := command{app}
	return cli.Group("web", "Start, stop and open the web dashboard", webStartVerb(a), webStopVerb(a), webOpenVerb(a))
}

func webStartVerb(a command) *cobra.Command {
	var p control.WebStart
	cmd := &cobra.Command{
		Use: "start", Short: "Start the web dashboard and print its address", Args: cli.ExactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cli.Answer(cmd.Context(), a.App, (*control.Client).WebStart, p, func(v control.WebState) error {
				a.PrintNote("the web dashboard listens on %s; get a sign-in link with: queuectl web open", v.Listen)
				return a.Println(v.Listen)
			})
		},
	}
	cmd.Flags().Var(input.NonEmpty(&p.Listen), "listen",
		"listen on `ADDRESS:PORT` or unix:/PATH (default: the setting web.listen, or 127.0.0.1:7070)")
	return cmd
}

func webStopVerb(a command) *cobra.Command {
	return &cobra.Command{
		Use: "stop", Short: "Stop the web dashboard", Args: cli.ExactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cli.Answer(cmd.Context(), a.App, (*control.Client).WebStop, control.Nothing{}, func(control.WebState) error {
				a.PrintNote("the web dashboard is off")
				return nil
			})
		},
	}
}

func webOpenVerb(a command) *cobra.Command {
	return &cobra.Command{
		Use: "open", Short: "Print a sign-in link, valid once and for one minute", Args: cli.ExactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cli.Answer(cmd.Context(), a.App, (*control.Client).WebOpen, control.Nothing{}, func(v control.WebLink) error {
				a.PrintNote("open this link within a minute; it works once:")
				return a.Println(v.URL)
			})
		},
	}
}
