package cli

import (
	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
)

// WebVerb returns the command web. Only queuectld links it, to keep queuectl small.
func WebVerb(app *App) *cobra.Command {
	a := admin{app}
	return Group("web", "Start, stop and open the web dashboard", webStartVerb(a), webStopVerb(a), webOpenVerb(a))
}

func webStartVerb(a admin) *cobra.Command {
	var p control.WebStart
	cmd := &cobra.Command{
		Use: "start", Short: "Start the web dashboard and print its address", Args: Exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return answer(cmd.Context(), a.App, (*control.Client).WebStart, p, func(v control.WebState) error {
				a.Say("the web dashboard listens on %s; get a sign-in link with: queuectl web open", v.Listen)
				return a.Println(v.Listen)
			})
		},
	}
	cmd.Flags().Var(NonEmpty(&p.Listen), "listen", "listen on `ADDRESS:PORT` or unix:/PATH (default: the setting web.listen, or 127.0.0.1:7070)")
	return cmd
}

func webStopVerb(a admin) *cobra.Command {
	return &cobra.Command{
		Use: "stop", Short: "Stop the web dashboard", Args: Exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return answer(cmd.Context(), a.App, (*control.Client).WebStop, control.Nothing{}, func(control.WebState) error {
				a.Say("the web dashboard is off")
				return nil
			})
		},
	}
}

func webOpenVerb(a admin) *cobra.Command {
	return &cobra.Command{
		Use: "open", Short: "Print a sign-in link, valid once and for one minute", Args: Exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return answer(cmd.Context(), a.App, (*control.Client).WebOpen, control.Nothing{}, func(v control.WebLink) error {
				a.Say("open this link within a minute; it works once:")
				return a.Println(v.URL)
			})
		},
	}
}
