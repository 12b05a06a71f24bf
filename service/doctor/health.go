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

// Problems returns the problems that keep the queue from running jobs. failing says whether the queue cannot
// work at all. Problems sends requests to the runners.
func (h *HealthCheck) Problems(ctx context.Context) (problems []string, failing bool) {
	if h.Maintainer != nil {
		if err := h.Maintainer.SpaceError(); err != nil {
			problems, failing = append(problems, err.Error()), true
		}
		if err := h.Maintainer.CheckpointError(); err != nil {
			problems = append(problems, err.Error())
		}
		if err := h.Maintainer.SlowCommitError(); err != nil {
			problems, failing = append(problems, err.Error()+"; check the disk"), true
		}
	}
	if trouble := h.LeaseKeeper.RenewalFailure(); trouble != nil {
		problems, failing = append(problems, trouble.Text), failing || !time.Now().Before(trouble.LeaseDeadline)
	}
	for _, w := range h.Pool.ListWorkers(ctx) {
		if w.Stuck {
			problems = append(problems,
				fmt.Sprintf("worker %s is blocked by process %d, which does not end after SIGKILL; see what "+
					"this process waits for: cat /proc/%d/stack", w.ID, w.PID, w.PID))
		}
		if w.Stale {
			problems = append(problems,
				fmt.Sprintf("worker %s with job %s has sent no heartbeat for %s (setting worker_timeout); "+
					"check the runners: queuectl doctor", w.ID, w.JobID,
					queue.FormatDuration(h.Settings.Current().WorkerTimeout)))
		}
	}
	unresponsive := h.Pool.UnresponsiveRunners()
	counts := h.Store.Counts()
	waiting := counts.States[queue.Pending] + counts.States[queue.Failed]
	switch workers := h.Pool.WantedWorkers(); {
	case h.Pool.IsStopping():
		problems = append(problems, "the service is stopping, so no jobs start")
	case waiting == 0 || h.Pool.IsDraining() || h.Pool.IsAllPaused():
	case workers == 0:
		problems = append(problems, fmt.Sprintf("%s, but there are no workers; add some with: queuectl worker start",
			waitingJobsText(waiting)))
	case len(unresponsive) > 0 && h.Pool.BusyWorkers() >= workers:
		problems = append(problems,
			fmt.Sprintf("%s, but no worker is free while a runner does not answer; end that runner, or "+
				"add workers with: queuectl worker start", waitingJobsText(waiting)))
	}
	for _, pid := range unresponsive {
		problems = append(problems, fmt.Sprintf("%s does not answer; %s", worker.RunnerText(pid), EndRunnerAdvice(pid)))
	}
	if problem := h.launcherProblem(); problem != "" {
		problems = append(problems, problem)
	}
	for _, f := range examineResourceLimits(h.Settings.Current()) {
		if f.Level != store.LevelOK {
			problems = append(problems, f.Message+"; "+f.Advice)
		}
	}
	if pause := h.Pool.ThrottleReason(); pause != "" {
		problems = append(problems, pause)
	}
	if all := h.Pauses.Load(); all != nil {
		problems = append(problems,
			fmt.Sprintf("all jobs are paused, by %s since %s; resume them with: queuectl resume --all",
				h.Owners.UserName(all.UID), all.SetAt))
	}
	problems = append(problems, h.AllNodes.LostNodeProblems(ctx)...)
	if h.Pool.IsDraining() {
		problems = append(problems, "the service is draining, so no jobs start; end the drain with: "+
			h.DrainState.EndDrainCommand(h.Node))
	}
	return problems, failing
}

// waitingJobsText returns a text like "5 jobs are waiting".
func waitingJobsText(n int64) string {
	if n == 1 {
		return "1 job is waiting"
	}
	return fmt.Sprintf("%d jobs are waiting", n)
}

// maxProblems is the maximum number of problems that HealthText lists.
const maxProblems = 20

// HealthText returns one line for the status: "ok", or the severity and the first maxProblems problems.
func HealthText(problems []string, failing bool) string {
	if more := len(problems) - maxProblems; more > 0 {
		problems = append(problems[:maxProblems:maxProblems], fmt.Sprintf("and %d more", more))
	}
	switch {
	case failing:
		return "failing: " + strings.Join(problems, "; ")
	case len(problems) > 0:
		return "degraded: " + strings.Join(problems, "; ")
	}
	return "ok"
}

// NoRunnerProblem explains why no job can start if there is no runner. It returns the cause and the next step
// for the user. Both are "" if there is a runner, or if the first try to start one is still in progress.
func (h *HealthCheck) NoRunnerProblem() (text, nextStep string) {
	err := h.Pool.RunnerError()
	var launcherErr *runner.LauncherError
	switch {
	case err == nil:
		return "", ""
	case errors.As(err, &launcherErr):
		return fmt.Sprintf("no jobs can start: %v", launcherErr), launcherErr.Advice
	}
	return fmt.Sprintf("no jobs can start: %v", err), "see the log of the service; the service will try again"
}

// launcherProblem returns a line for the status that says why no job can start for lack of a runner. It also
// reports a launcher (the process that starts runners as root) that cannot start runners while the existing
// runners still work. It returns "" if it finds no problem.
func (h *HealthCheck) launcherProblem() string {
	if text, next := h.NoRunnerProblem(); text != "" {
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
	if !errors.As(x.RunnerLocation.CheckLauncher(), &launcherErr) && !errors.As(x.Pool.RunnerError(), &launcherErr) {
		return nil
	}
	return []store.Finding{{Check: "launcher", Level: store.LevelFailure, Message: launcherErr.Error(),
		Advice: launcherErr.Advice}}
}
