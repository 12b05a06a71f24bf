package cli

import (
	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
)

func pauseVerb(a *App) *cobra.Command {
	return a.pauseCommand("pause", "Pause running jobs, including their timeouts", "is paused", (*control.Client).Pause,
		"pause all running jobs and start no new jobs until queuectl resume --all",
		"everything is paused: no job runs or starts until queuectl resume --all")
}

func resumeVerb(a *App) *cobra.Command {
	return a.pauseCommand("resume", "Resume paused jobs", "is resumed", (*control.Client).Resume,
		"undo pause --all; jobs that were paused individually stay paused",
		"everything is resumed: paused jobs continue and new jobs start")
}

// pauseCommand builds a command for running jobs or, with --all, for the whole queue. The parameter
// outcome describes a changed job in messages, for example "is paused". The parameter all is the
// message for --all.
func (a *App) pauseCommand(name, short, outcome string, do bulkFunc, allUsage, all string) *cobra.Command {
	var s Selection
	s.States = []string{"processing"}
	cmd := &cobra.Command{
		Use: name + " ID… | --label NAME=VALUE … | --all", Short: short,
		RunE: func(cmd *cobra.Command, ids []string) error {
			if s.All {
				return a.pauseOrResumeAll(cmd, &s, ids, outcome, do, all)
			}
			return a.ActOnSelection(cmd, &s, ids, outcome, do)
		},
	}
	s.AddFlags(cmd, "s")
	s.AddActionFlags(cmd)
	cmd.Flags().Lookup("all").Usage = allUsage
	cmd.ValidArgsFunction = a.CompleteIDs(s.States...)
	return cmd
}

// pauseOrResumeAll pauses or resumes the whole queue, and prints which running jobs are affected.
func (a *App) pauseOrResumeAll(cmd *cobra.Command, s *Selection, ids []string, outcome string, do bulkFunc,
	say string) error {
	p, err := s.Params(cmd, ids)
	if err != nil {
		return err
	}
	return a.WithClient(func(c *control.Client) error {
		return a.runBulk(outcome, say, nil, func(_ []string, cursor string) (control.BulkResult, error) {
			p.Cursor = cursor
			return do(c, cmd.Context(), p)
		})
	})
}
