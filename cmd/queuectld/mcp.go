package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/mcp"
	"github.com/queuectl/queuectl/queue"
)

func mcpVerb(a *app) *cobra.Command {
	var o mcp.ServerOptions
	cmd := &cobra.Command{
		Use: "mcp", Short: "Offer the queue to coding agents (Model Context Protocol)",
		Args: cli.ExactArgs(0, "no arguments"),
		Long: `Offer the queue to coding agents through the Model Context Protocol.

A coding agent starts this server and uses it through standard input and output.
The agent can list, show, wait for and explain your own jobs. With --write, it
can also enqueue, cancel and retry jobs. The server has your rights, never more.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := a.ChooseTarget()
			if err != nil {
				return err
			}
			o.ServerVersion = cli.Version
			o.AddCallerContext = func(s *queue.Spec) error { return input.CompleteAndCheckSpec(s, false) }
			o.ExplainError = func(err error) error { return t.ExplainConnectError(err) }
			return mcp.Serve(cmd.Context(), func() *control.Client { return control.NewClient(t.SocketPath) }, o, os.Stdin,
				a.Stdout)
		},
	}
	cmd.Flags().BoolVar(&o.AllowChanges, "write", false, "offer tools that enqueue, cancel and retry jobs")
	cmd.Flags().BoolVar(&o.IncludeAllUsers, "all-users", false, "include the jobs of other users, if your rights allow it")
	return cmd
}
