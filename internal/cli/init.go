package cli

import (
	"github.com/spf13/cobra"
)

func initVerb(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "init", Short: "Do nothing: the first job creates the queue", Args: ExactArgs(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			if a.Structured() {
				return a.PrintJSON(map[string]bool{"done": true})
			}
			return a.Println("nothing to do: the first job creates the queue; try: queuectl enqueue 'echo hello'")
		},
	}
}
