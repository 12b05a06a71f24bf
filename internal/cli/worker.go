package cli

import (
	"context"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

func workerVerb(a *App) *cobra.Command {
	var startCount int
	var foreground bool
	start := NewCommand("start", "Add workers",
		ExactArgs(0, "no arguments (use -c N)"), func(ctx context.Context, _ []string) error {
			if startCount < 1 {
				return fault.Usagef("--count: %d is too small; use 1 or more", startCount)
			}
			return a.WithStartedService(ctx, func(c *control.Client) error {
				if foreground {
					return a.addWorkersUntilInterrupt(ctx, c, startCount)
				}
				var p control.WorkerStartParams
				if a.Cmd.Flags().Changed("count") {
					p.WorkersToAdd = &startCount
				}
				return CallClientAndPrint(ctx, a, c, (*control.Client).StartWorkers, p, a.printWorkerCount)
			})
		})
	start.Flags().IntVarP(&startCount, "count", "c", 1, "add `N` workers")
	start.Flags().BoolVar(&foreground, "foreground", false, "wait, and remove these workers when you press Ctrl-C")
	return GroupCommand("worker", "Add, remove and list workers, which run the jobs", start, workerStopVerb(a),
		workerScaleVerb(a), workerListVerb(a))
}

func workerStopVerb(a *App) *cobra.Command {
	var p control.WorkerStopParams
	var yes bool
	cmd := NewCommand("stop -c N | --all", "Remove workers; their running jobs may finish",
		ExactArgs(0, "no arguments (use -c N or --all)"), func(ctx context.Context, _ []string) error {
			if p.WorkersToRemove != nil && *p.WorkersToRemove < 1 {
				return fault.Usagef("--count: %d is too small; use 1 or more", *p.WorkersToRemove)
			}
			if p.WorkersToRemove == nil && !p.AllWorkers {
				return fault.Usagef("%s: no number of workers given; use -c N, or --all to remove all workers", a.Cmd.CommandPath())
			}
			return a.WithClient(func(c *control.Client) error {
				if immediate := p.StopJobsImmediately || p.JobFinishTimeout != nil && *p.JobFinishTimeout == 0; immediate && !yes &&
					a.CanAskUser() {
					st, err := c.Status(ctx, control.NoParams{})
					if err != nil {
						return err
					}
					n := st.Workers.Busy
					if p.WorkersToRemove != nil {
						n = min(n, *p.WorkersToRemove)
					}
					if n > 0 && !a.Confirm("stop and requeue %s?", present.Plural(n, "running job")) {
						return nil
					}
				}
				return CallClientAndPrint(ctx, a, c, (*control.Client).StopWorkers, p, a.printWorkerCount)
			})
		})
	f := cmd.Flags()
	f.BoolVar(&yes, "yes", false, "do not ask for confirmation")
	input.OptionalVar(f, &p.WorkersToRemove, input.ParseInt, "count", "c", "remove `N` workers")
	f.BoolVar(&p.AllWorkers, "all", false, "remove all workers")
	input.OptionalVar(f, &p.JobFinishTimeout, input.ParseDuration, "timeout", "",
		"after `DURATION`, put jobs that are still running back in the queue (default 30s)")
	f.BoolVar(&p.StopJobsImmediately, "force", false, "same as --timeout 0")
	return cmd
}

func workerScaleVerb(a *App) *cobra.Command {
	return NewCommand("scale N", "Set the number of workers",
		ExactArgs(1, "a number of workers"), func(ctx context.Context, args []string) error {
			n, err := strconv.Atoi(args[0])
			if err != nil || n < 0 {
				return fault.Usagef("%q is not a number of workers; use a number from 0 to %d", queue.ClipForMessage(args[0]),
					control.MaxWorkers)
			}
			return CallAndPrint(ctx, a, (*control.Client).ScaleWorkers, control.WorkerScaleParams{TargetWorkers: n},
				a.printWorkerCount)
		})
}

func (a *App) printWorkerCount(count control.WorkerCount) error {
	return a.Println(present.WorkerCountText(count.Workers))
}

func workerListVerb(a *App) *cobra.Command {
	head := []string{"ID", "NODE", "STATE", "PID", "STARTED" + termtext.HeadingZonePlaceholder, "HEARTBEAT" +
		termtext.HeadingZonePlaceholder, "JOB"}
	all := func(ctx context.Context, c *control.Client, _ string) ([]control.Worker, string, error) {
		got, err := c.ListWorkers(ctx, control.NoParams{})
		return got.Workers, "", err
	}
	return ListVerb(a, "List workers", present.NoWorkersText, head, false, all, func(w *control.Worker) []string {
		return []string{w.ID, w.Node, w.State, present.DashIfNil(w.PID), present.LocalTimeText(w.StartedAt),
			present.LocalTimeText(w.LastHeartbeat), present.DashIfNil(w.Job)}
	})
}

// addWorkersUntilInterrupt adds workers and waits for Ctrl-C. Then it removes the same number of workers, after their
// running jobs have finished.
func (a *App) addWorkersUntilInterrupt(ctx context.Context, c *control.Client, workerCount int) error {
	signals := make(chan os.Signal, 1)
	// Call Notify before the request, because the user may press Ctrl-C just after the reply has arrived.
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	got, err := c.StartWorkers(ctx, control.WorkerStartParams{WorkersToAdd: &workerCount})
	if err != nil {
		return err
	}
	a.PrintMessage("the service now has %s; press Ctrl-C to remove %d of them (running jobs finish first)",
		present.WorkerCountText(got.Workers), workerCount)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	select {
	case <-signals:
	case err := <-FollowEvents(waiting, c,
		control.EventsParams{EventKinds: control.TextList{string(queue.EventSettingChanged)}},
		func(control.Event) error { return nil }):
		return err // the error says that the service has ended
	}
	signal.Stop(signals) // from here on, a second signal ends this process immediately
	return CallClientAndPrint(ctx, a, c, (*control.Client).StopWorkers,
		control.WorkerStopParams{WorkersToRemove: &workerCount}, a.printWorkerCount)
}
