package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/admin"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/top"
)

func topVerb(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "top", Short: "Show a live screen of all jobs, with keys to control them",
		Args: cli.ExactArgs(0, "no arguments"),
		Long: `Show a live screen of all jobs, with keys to control them.

The screen shows running jobs with their progress and last lines of output,
waiting jobs and their reasons, failed jobs, queues and schedules. It offers
only the keys that your rights allow. top needs a terminal of at least 40x10
characters; without one, use: queuectl status --watch`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.WantsJSON() || !term.IsTerminal(os.Stdin) || !term.IsTerminal(a.Stdout) || os.Getenv("TERM") == "dumb" {
				return fault.Usagef(
					"top needs a terminal that can move the cursor; to watch the queue without one, use: queuectl " +
						"status --watch; for output to a program, use: queuectl list --json")
			}
			t, err := a.ChooseTarget()
			if err != nil {
				return err
			}
			host, _ := os.Hostname() // without a host name, the screen shows only the user name
			return top.Run(cmd.Context(), top.Options{
				Connect: func() top.Client {
					c := control.NewClient(t.SocketPath)
					return top.Client{API: c, Closer: c}
				},
				EditJob:            a.editJobFromTop,
				AddNextStepToError: func(err error) error { return t.ExplainConnectError(err) },
				HostName:           host, Stdin: os.Stdin, Stdout: a.Stdout,
			})
		},
	}
}

// editJobFromTop lets the user edit a job. It returns an error if the service rejected the changes and
// the user did not correct them.
func (a *app) editJobFromTop(ctx context.Context, jobID string) error {
	err := admin.EditJob(ctx, a.App, jobID)
	if err == nil && a.ExitCode != 0 {
		a.ExitCode = 0
		return fmt.Errorf("job %s: your changes were not applied, for the reason shown after you closed the editor; "+
			"edit the job again with: queuectl edit %[1]s", jobID)
	}
	return err
}
