package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/present"
)

func whyVerb(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "why ID", Short: "Explain why a job is not running", Args: ExactArgs(1, "the id of a job"),
		ValidArgsFunction: a.CompleteIDs("waiting"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ReadAndPrint(cmd.Context(), a, (*control.Client).Why, control.WhyParams{ID: control.JobID(args[0])},
				a.printWhy)
		},
	}
}

// printWhy prints one reason per line, with what to do about it.
func (a *App) printWhy(w control.Why) (err error) {
	for _, line := range present.WhyLines(&w, time.Now()) {
		err = a.Println(a.EscapeFor(a.Stdout, line))
	}
	return err
}
