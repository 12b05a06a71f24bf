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
			return cli.CallAndPrint(cmd.Context(), a, (*control.Client).Whoami, control.NoParams{},
				func(w control.Whoami) error { return a.PrintPairs(13, present.WhoamiRows(&w)) })
		},
	}
}
