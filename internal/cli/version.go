package cli

import (
	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
)

// Version is the version of both programs. The release build sets it.
var Version = "0.1.0-dev"

func versionVerb(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: ExactArgs(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			if a.JSON || a.JSONL {
				return a.PrintJSON(map[string]any{"version": Version, "protocol": control.Protocol})
			}
			return a.Println("queuectl " + Version)
		},
	}
}
