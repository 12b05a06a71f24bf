package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/mcp"
	"github.com/queuectl/queuectl/queue"
)

func mcpVerb(a *app) *cobra.Command {
	var o mcp.Options
	cmd := &cobra.Command{
		Use: "mcp", Short: "Offer the queue to coding agents, by the Model Context Protocol", Args: cli.Exactly(0, "no arguments"),
		Long: `Offer the queue to coding agents, by the Model Context Protocol.

It is a server on standard input and output, which an agent starts: it lists, shows, waits for and
explains the caller's own jobs. With --write it also enqueues, cancels and retries them. It may
never do more than whoever started it.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := a.Choose()
			if err != nil {
				return err
			}
			o.Version = cli.Version
			o.Complete = func(s *queue.Spec) error { return cli.Prepare(s, false) }
			o.Explain = func(err error) error { return a.Reached(err, t) }
			return mcp.Serve(cmd.Context(), func() *control.Client { return control.NewClient(t.Socket) }, o, os.Stdin, a.Out)
		},
	}
	cmd.Flags().BoolVar(&o.Write, "write", false, "offer tools that enqueue, cancel and retry jobs")
	cmd.Flags().BoolVar(&o.AllUsers, "all-users", false, "tell of others' jobs too, as far as the caller's rights go")
	return cmd
}
