package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/service/parts"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// HealthCheck finds the problems that keep the queue from running jobs. Its results appear in the status.
type HealthCheck struct{ *parts.Dependencies }

// FindQueueProblems returns the problems that keep the queue from running jobs. queueCannotWork is true if the queue
// cannot work at all. FindQueueProblems sends requests to the runners.
func (h *HealthCheck) FindQueueProblems(ctx context.Context) (problems []string, queueCannotWork bool) {
	if h.StoreMaintainer != nil {
		if err := h.StoreMaintainer.DiskSpaceError(); err != nil {
			problems, queueCannotWork = append(problems, err.Error()), true
		}
		if err := h.StoreMaintainer.CheckpointError(); err != nil {
			problems = append(problems, err.Error())
		}
		if err := h.StoreMaintainer.SlowCommitError(); err != nil {
			problems, queueCannotWork = append(problems, err.Error()+"; check the disk"), true
		}
	}
	if trouble := h.NodeLeaseKeeper.NodeLeaseRenewalFailure(); trouble != nil {
		problems, queueCannotWork = append(problems, trouble.UserMessage), queueCannotWork ||
			!time.Now().Before(trouble.NodeLeaseDeadline)
	}
	for _, w := range h.Pool.ListWorkers(ctx) {
		if w.Stuck {
			problems = append(problems, fmt.Sprintf("worker %s is blocked by process %d, which does not end after SIGKILL; "+
				"see what this process waits for: cat /proc/%d/stack", w.ID, w.PID, w.PID))
		}
		if w.Stale {
			problems = append(problems,
				fmt.Sprintf("worker %s with job %s has sent no heartbeat for %s (setting worker_timeout); "+
					"check the runners: queuectl doctor", w.ID, w.JobID,
					queue.FormatDuration(h.Settings.CurrentConfig().WorkerTimeout)))
		}
	}
	unresponsive := h.Pool.UnresponsiveRunnerPIDs()
	counts := h.Store.Counts()
	waiting := counts.JobsByState[queue.Pending] + counts.JobsByState[queue.Failed]
	switch workers := h.Pool.WantedWorkerCount(); {
	case h.Pool.IsStopping():
		problems = append(problems, "the service is stopping, so no jobs start")
	case waiting == 0 || h.Pool.IsDraining() || h.Pool.AreAllJobsPaused():
	case workers == 0:
		problems = append(problems, fmt.Sprintf("%s, but there are no workers; add some with: queuectl worker start",
			waitingJobsText(waiting)))
	case len(unresponsive) > 0 && h.Pool.BusyWorkerCount() >= workers:
		problems = append(problems,
			fmt.Sprintf("%s, but no worker is free while a runner does not answer; end that runner, or "+
				"add workers with: queuectl worker start", waitingJobsText(waiting)))
	}
	for _, pid := range unresponsive {
		problems = append(problems, fmt.Sprintf("%s does not answer; %s", worker.RunnerDescription(pid),
			HungRunnerAdvice(pid)))
	}
	if problem := h.launcherProblem(); problem != "" {
		problems = append(problems, problem)
	}
	for _, f := range examineResourceLimits(h.Settings.CurrentConfig()) {
		if f.Level != store.LevelOK {
			problems = append(problems, f.Message+"; "+f.Advice)
		}
	}
	if pause := h.Pool.ClaimPauseReason(); pause != "" {
		problems = append(problems, pause)
	}
	if all := h.PauseOfAllJobs.Load(); all != nil {
		problems = append(problems,
			fmt.Sprintf("all jobs are paused, by %s since %s; resume them with: queuectl resume --all",
				h.Owners.UserName(all.SetByUID), all.SetAt))
	}
	problems = append(problems, h.AllNodes.LostNodeProblems(ctx)...)
	if h.Pool.IsDraining() {
		problems = append(problems, "the service is draining, so no jobs start; end the drain with: "+
			h.DrainState.EndDrainCommand(h.NodeName))
	}
	return problems, queueCannotWork
}

// waitingJobsText returns a text like "5 jobs are waiting".
func waitingJobsText(n int64) string {
	if n == 1 {
		return "1 job is waiting"
	}
	return fmt.Sprintf("%d jobs are waiting", n)
}

// maxListedProblems is the maximum number of problems that HealthText lists.
const maxListedProblems = 20

// HealthText returns one line for the status: "ok", or the severity and the first maxListedProblems problems.
func HealthText(problems []string, queueCannotWork bool) string {
	if more := len(problems) - maxListedProblems; more > 0 {
		problems = append(problems[:maxListedProblems:maxListedProblems], fmt.Sprintf("and %d more", more))
	}
	switch {
	case queueCannotWork:
		return "failing: " + strings.Join(problems, "; ")
	case len(problems) > 0:
		return "degraded: " + strings.Join(problems, "; ")
	}
	return "ok"
}

// ExplainMissingRunner explains why no job can start if no runner could be started. It returns the cause and the next
// step for the user. Both are "" if there is a runner, or if the first try to start one is still in progress.
func (h *HealthCheck) ExplainMissingRunner() (cause, nextStep string) {
	err := h.Pool.RunnerSpawnError()
	var launcherErr *runner.LauncherError
	switch {
	case err == nil:
		return "", ""
	case errors.As(err, &launcherErr):
		return fmt.Sprintf("no jobs can start: %v", launcherErr), launcherErr.Advice
	}
	return fmt.Sprintf("no jobs can start: %v", err), "see the log of the service; the service will try again"
}

// launcherProblem returns a line for the status that says why no job can start for lack of a runner. It also reports a
// launcher (the process that starts runners as root) that cannot start runners, even if the existing runners still
// work. It returns "" if it finds no problem.
func (h *HealthCheck) launcherProblem() string {
	if text, next := h.ExplainMissingRunner(); text != "" {
		return text + "; " + next
	}
	var launcherErr *runner.LauncherError
	if errors.As(h.RunnerLocation.CheckLauncher(), &launcherErr) {
		return launcherErr.Error() + "; " + launcherErr.Advice
	}
	return ""
}

// examineLauncher reports a launcher that does not start runners.
func (x *Examiner) examineLauncher() []store.Finding {
	var launcherErr *runner.LauncherError
	if !errors.As(x.RunnerLocation.CheckLauncher(), &launcherErr) && !errors.As(x.Pool.RunnerSpawnError(), &launcherErr) {
		return nil
	}
	return []store.Finding{{CheckName: "launcher", Level: store.LevelFailure, Message: launcherErr.Error(),
		Advice: launcherErr.Advice}}
}
