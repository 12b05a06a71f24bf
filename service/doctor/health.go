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
func (h *HealthCheck) Problems(ctx context.Context) (list []string, failing bool) {
	if h.Maintainer != nil {
		if err := h.Maintainer.SpaceError(); err != nil {
			list, failing = append(list, err.Error()), true
		}
		if err := h.Maintainer.CheckpointError(); err != nil {
			list = append(list, err.Error())
		}
		if err := h.Maintainer.SlowCommitError(); err != nil {
			list, failing = append(list, err.Error()+"; check the disk"), true
		}
	}
	if trouble := h.LeaseKeeper.RenewalFailure(); trouble != nil {
		list, failing = append(list, trouble.Text), failing || !time.Now().Before(trouble.LeaseDeadline)
	}
	for _, w := range h.Pool.ListWorkers(ctx) {
		if w.Stuck {
			list = append(list, fmt.Sprintf("worker %s is blocked by process %d, which does not end after SIGKILL; see what "+
				"this process waits for: cat /proc/%d/stack", w.ID, w.PID, w.PID))
		}
		if w.Stale {
			list = append(list, fmt.Sprintf("worker %s with job %s has sent no heartbeat for %s (setting worker_timeout); "+
				"check the runners: queuectl doctor", w.ID, w.JobID,
				queue.FormatDuration(h.Settings.Current().WorkerTimeout)))
		}
	}
	unresponsive := h.Pool.UnresponsiveRunners()
	counts := h.Store.Counts()
	waiting := counts.States[queue.Pending] + counts.States[queue.Failed]
	switch workers := h.Pool.WantedWorkers(); {
	case h.Pool.IsStopping():
		list = append(list, "the service is stopping, so no jobs start")
	case waiting == 0 || h.Pool.IsDraining() || h.Pool.IsAllPaused():
	case workers == 0:
		list = append(list, fmt.Sprintf("%s, but there are no workers; add some with: queuectl worker start",
			waitingJobsText(waiting)))
	case len(unresponsive) > 0 && h.Pool.BusyWorkers() >= workers:
		list = append(list, fmt.Sprintf("%s, but no worker is free while a runner does not answer; end that runner, or "+
			"add workers with: queuectl worker start", waitingJobsText(waiting)))
	}
	for _, pid := range unresponsive {
		list = append(list, fmt.Sprintf("%s does not answer; %s", worker.RunnerText(pid), EndRunnerAdvice(pid)))
	}
	if problem := h.launcherProblem(); problem != "" {
		list = append(list, problem)
	}
	for _, f := range examineResourceLimits(h.Settings.Current()) {
		if f.Level != store.LevelOK {
			list = append(list, f.Message+"; "+f.Advice)
		}
	}
	if pause := h.Pool.ThrottleReason(); pause != "" {
		list = append(list, pause)
	}
	if all := h.Pauses.Load(); all != nil {
		list = append(list, fmt.Sprintf("all jobs are paused, by %s since %s; resume them with: queuectl resume --all",
			h.Owners.UserName(all.UID), all.SetAt))
	}
	list = append(list, h.AllNodes.LostNodeProblems(ctx)...)
	if h.Pool.IsDraining() {
		list = append(list, "the service is draining, so no jobs start; end the drain with: "+
			h.DrainState.EndDrainCommand(h.Node))
	}
	return list, failing
}

// waitingJobsText returns a text like "5 jobs are waiting".
func waitingJobsText(n int64) string {
	if n == 1 {
		return "1 job is waiting"
	}
	return fmt.Sprintf("%d jobs are waiting", n)
}

// maxProblems is the maximum number of problems that health lists.
const maxProblems = 20

// HealthText summarizes problems in one line.
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

// NoRunnerProblem explains that no job can start because there is no runner. It returns the cause and the next
// step for the user. Both are "" if there is a runner, or if the first try to start one is still in progress.
func (h *HealthCheck) NoRunnerProblem() (text, next string) {
	err := h.Pool.RunnerError()
	var launcher *runner.LauncherError
	switch {
	case err == nil:
		return "", ""
	case errors.As(err, &launcher):
		return fmt.Sprintf("no jobs can start: %v", launcher), launcher.Advice
	}
	return fmt.Sprintf("no jobs can start: %v", err), "see the log of the service; the service will try again"
}

// launcherProblem returns a line for the status that says why runners cannot start. It also reports that the
// launcher has stopped, even while a runner still exists. It returns "" if it knows no problem.
func (h *HealthCheck) launcherProblem() string {
	if text, next := h.NoRunnerProblem(); text != "" {
		return text + "; " + next
	}
	var launcher *runner.LauncherError
	if errors.As(h.RunnerLocation.CheckLauncher(), &launcher) {
		return launcher.Error() + "; " + launcher.Advice
	}
	return ""
}

// examineLauncher reports a launcher that does not start runners.
func (x *Examiner) examineLauncher() []store.Finding {
	var launcher *runner.LauncherError
	if !errors.As(x.RunnerLocation.CheckLauncher(), &launcher) && !errors.As(x.Pool.RunnerError(), &launcher) {
		return nil
	}
	return []store.Finding{{Check: "launcher", Level: store.LevelFailure, Message: launcher.Error(),
		Advice: launcher.Advice}}
}
