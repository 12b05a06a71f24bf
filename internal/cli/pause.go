package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
)

func pauseVerb(a *App) *cobra.Command {
	return a.pauseCommand("pause", "Pause running jobs, including their timeouts", "is paused", (*control.Client).Pause,
		"pause all running jobs and start no new jobs until queuectl resume --all", "everything is paused: no job runs or starts until queuectl resume --all")
}

func resumeVerb(a *App) *cobra.Command {
	return a.pauseCommand("resume", "Resume paused jobs", "is resumed", (*control.Client).Resume,
		"undo pause --all; jobs that were paused individually stay paused", "everything is resumed: paused jobs continue and new jobs start")
}

// pauseCommand builds a command for running jobs or, with --all, for the whole queue. The argument
// outcome is what messages say of a job, like "is paused"; all is the message for --all.
func (a *App) pauseCommand(name, short, outcome string, do bulkFunc, allUsage, all string) *cobra.Command {
	var s selection
	s.states = []string{"processing"}
	cmd := &cobra.Command{
		Use: name + " ID… | --label NAME=VALUE … | --all", Short: short,
		RunE: func(cmd *cobra.Command, ids []string) error {
			if s.All {
				return a.onEverything(cmd, &s, ids, outcome, do, all)
			}
			return a.onSelection(cmd, &s, ids, outcome, do)
		},
	}
	s.add(cmd, "s")
	s.act(cmd)
	cmd.Flags().Lookup("all").Usage = allUsage
	cmd.ValidArgsFunction = a.completeIDs(s.states...)
	return cmd
}

// onEverything pauses or resumes the whole queue, and prints which running jobs that affects.
func (a *App) onEverything(
	cmd *cobra.Command, s *selection, ids []string, outcome string, do bulkFunc, say string,
) error {
	p, err := s.of(cmd, ids)
	if err != nil {
		return err
	}
	c, err := a.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	v, err := do(c, cmd.Context(), p)
	if err != nil {
		return err
	}
	all := control.BulkResult{Done: []string{}, Refused: []control.Refusal{}}
	if err := a.printResult(&v, &all, outcome); err != nil {
		return err
	}
	switch {
	case a.JSON && !a.JSONL:
		return a.PrintJSON(all)
	case a.Structured():
		return nil
	case v.Matched != nil:
		return a.counted(*v.Matched)
	}
	a.Say("%s", say)
	return nil
}

// stateText returns a job's state for people.
func stateText(j *control.Job) string {
	if j.PausedAt != 0 {
		return j.State + " (paused)"
	}
	return j.State
}

// pausedSince returns when and by which user a running job was paused, or "" if it is not paused.
func pausedSince(j *control.Job) string {
	if j.PausedAt == 0 {
		return ""
	}
	return "since " + local(j.PausedAt) + " by " + orDefault(j.PausedBy, "?")
}

// pausedText returns for how long and by which user a running job has been paused.
func pausedText(j *control.Job, now time.Time) string {
	return ageOf(j.PausedAt, now) + " by " + orDefault(j.PausedBy, "?")
}
