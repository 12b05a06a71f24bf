package admin

import (
	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/present"
)

// WhoamiVerb returns the command whoami. Only queuectld links it, to keep queuectl small.
func WhoamiVerb(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Show your identity and rights", Args: cli.ExactArgs(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.MissingIsEmpty = true
			return cli.Answer(cmd.Context(), a, (*control.Client).Whoami, control.Nothing{},
				func(w control.Whoami) error { return a.Rows(13, present.WhoamiRows(&w)) })
		},
	}
}
