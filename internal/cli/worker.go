package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

func workerVerb(a *App) *cobra.Command {
	var startCount int
	var foreground bool
	start := &cobra.Command{
		Use: "start", Short: "Add workers", Args: Exactly(0, "no arguments (use -c N)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if startCount < 1 {
				return Usage("--count: %d is too small; use 1 or more", startCount)
			}
			c, err := a.clientStarting(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			if foreground {
				return a.holdWorkers(cmd.Context(), c, startCount)
			}
			var p control.Count
			if cmd.Flags().Changed("count") {
				p.Count = &startCount
			}
			return answerOf(cmd.Context(), a, c, (*control.Client).WorkerStart, p, a.printCount)
		},
	}
	start.Flags().IntVarP(&startCount, "count", "c", 1, "add `N` workers")
	start.Flags().BoolVar(&foreground, "foreground", false, "wait, and remove these workers when you press Ctrl-C")
	return Group("worker", "Add, remove and list workers, which run the jobs", start, workerStopVerb(a), workerScaleVerb(a), workerListVerb(a))
}

func workerStopVerb(a *App) *cobra.Command {
	var p control.WorkerStop
	var count int
	var yes bool
	cmd := &cobra.Command{
		Use: "stop -c N | --all", Short: "Remove workers; their running jobs may finish", Args: Exactly(0, "no arguments (use -c N or --all)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("count") {
				p.Count = &count
				if count < 1 {
					return Usage("--count: %d is too small; use 1 or more", count)
				}
			} else if !p.All {
				return Usage("%s: no number of workers given; use -c N, or --all to remove all workers", cmd.CommandPath())
			}
			c, err := a.Client()
			if err != nil {
				return err
			}
			defer c.Close()
			if atOnce := p.Force || p.Timeout != nil && *p.Timeout == 0; atOnce && !yes && a.canAsk() {
				st, err := c.Status(cmd.Context(), control.Nothing{})
				if err != nil {
					return err
				}
				n := st.Workers.Busy
				if p.Count != nil {
					n = min(n, count)
				}
				if n > 0 && !a.confirm("stop and requeue %s?", plural(n, "running job")) {
					return nil
				}
			}
			return answerOf(cmd.Context(), a, c, (*control.Client).WorkerStop, p, a.printCount)
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	cmd.Flags().IntVarP(&count, "count", "c", 0, "remove `N` workers")
	cmd.Flags().BoolVar(&p.All, "all", false, "remove all workers")
	durationVar(cmd.Flags(), "timeout", "after `DURATION`, put jobs that are still running back in the queue (default 30s)", func(d time.Duration) { p.Timeout = (*control.Span)(&d) })
	cmd.Flags().BoolVar(&p.Force, "force", false, "same as --timeout 0")
	return cmd
}

func workerScaleVerb(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "scale N", Short: "Set the number of workers", Args: Exactly(1, "a number of workers"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[0])
			if err != nil || n < 0 {
				return Usage("%q is not a number of workers; use a number from 0 to %d", queue.Clip(args[0]), control.MaxWorkers)
			}
			return answer(cmd.Context(), a, (*control.Client).WorkerScale, control.WorkerScale{Count: n}, a.printCount)
		},
	}
}

func (a *App) printCount(got control.WorkerCount) error { return a.Println(workers(got.Workers)) }

// workers formats a number of workers, like "2 workers".
func workers(n int) string {
	if n == 1 {
		return "1 worker"
	}
	return fmt.Sprintf("%d workers", n)
}

func workerListVerb(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List workers", Args: Exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.missingIsEmpty = true
			c, err := a.Client()
			if err != nil {
				return err
			}
			defer c.Close()
			got, err := c.WorkerList(cmd.Context(), control.Nothing{})
			if err != nil {
				return err
			}
			if a.Structured() {
				return PrintList(&a.Output, got.Workers)
			}
			head := []string{"ID", "NODE", "STATE", "PID", "STARTED" + zonePlaceholder, "HEARTBEAT" + zonePlaceholder, "JOB"}
			return a.named(len(got.Workers), "no workers; add some with: queuectl worker start -c N", head, func(i int) []string {
				w := &got.Workers[i]
				return []string{w.ID, w.Node, w.State, orDash(w.PID), local(w.StartedAt), local(w.LastHeartbeat), orDash(w.Job)}
			})
		},
	}
}
