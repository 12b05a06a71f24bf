package admin

import (
	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
)

// HookVerb returns the command hook. Only queuectld links it, because it is rarely used.
func HookVerb(a *cli.App) *cobra.Command {
	return cli.GroupCommand("hook", "Test hooks and webhooks", hookTestVerb(a))
}

func hookTestVerb(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "test NAME", Short: "Test a hook or webhook; print the ID of the job that runs it",
		Args: cli.ExactArgs(1, "the name of a webhook or of a hook setting such as on_dead"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.CallAndPrint(cmd.Context(), a, (*control.Client).HookTest, control.HookName{Name: args[0]},
				func(got control.EnqueueResult) error {
					a.PrintInfo("job %s enqueued; follow it with: queuectl attach %s", got.ID, got.ID)
					return a.Println(got.ID)
				})
		},
	}
}
