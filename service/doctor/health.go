package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// FindQueueProblems returns the problems that keep the queue from running jobs, for the status. queueCannotWork is true
// if the queue cannot work at all. FindQueueProblems sends requests to the runners.
func (x *Examiner) FindQueueProblems(ctx context.Context) (problems []string, queueCannotWork bool) {
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if x.StoreMaintainer != nil {
		if err := x.StoreMaintainer.DiskSpaceError(); err != nil {
			add("%v", err)
			queueCannotWork = true
		}
		if err := x.StoreMaintainer.CheckpointError(); err != nil {
			add("%v", err)
		}
		if err := x.StoreMaintainer.SlowCommitError(); err != nil {
			add("%v; check the disk", err)
			queueCannotWork = true
		}
	}
	if trouble := x.NodeLeaseKeeper.NodeLeaseRenewalFailure(); trouble != nil {
		add("%s", trouble.UserMessage)
		queueCannotWork = queueCannotWork || !time.Now().Before(trouble.NodeLeaseDeadline)
	}
	for _, w := range x.Pool.ListWorkers(ctx) {
		if w.Stuck {
			add("worker %s is blocked by process %d, which does not end after SIGKILL; see what this process waits for: "+
				"cat /proc/%d/stack", w.ID, w.PID, w.PID)
		}
		if w.Stale {
			add("worker %s with job %s has sent no heartbeat for %s (setting worker_timeout); check the runners: "+
				"queuectl doctor", w.ID, w.JobID, queue.FormatDuration(x.Settings.CurrentConfig().WorkerTimeout))
		}
	}
	unresponsive := x.Pool.UnresponsiveRunnerPIDs()
	counts := x.Store.Counts()
	waiting := counts.JobsByState[queue.Pending] + counts.JobsByState[queue.Failed]
	switch workers := x.Pool.WantedWorkerCount(); {
	case x.Pool.IsStopping():
		add("the service is stopping, so no jobs start")
	case waiting == 0 || x.Pool.IsDraining() || x.Pool.AreAllJobsPaused():
	case workers == 0:
		add("%s, but there are no workers; add some with: queuectl worker start", waitingJobsText(waiting))
	case len(unresponsive) > 0 && x.Pool.BusyWorkerCount() >= workers:
		add("%s, but no worker is free while a runner does not answer; end that runner, or add workers with: "+
			"queuectl worker start", waitingJobsText(waiting))
	}
	for _, pid := range unresponsive {
		add("%s does not answer; %s", worker.RunnerDescription(pid), HungRunnerAdvice(pid))
	}
	if problem := x.launcherProblem(); problem != "" {
		add("%s", problem)
	}
	for _, f := range examineResourceLimits(x.Settings.CurrentConfig()) {
		if f.Level != store.LevelOK {
			add("%s; %s", f.Message, f.Advice)
		}
	}
	if pause := x.Pool.ClaimPauseReason(); pause != "" {
		add("%s", pause)
	}
	if all := x.PauseOfAllJobs.Load(); all != nil {
		add("all jobs are paused, by %s since %s; resume them with: queuectl resume --all",
			x.Owners.UserName(all.SetByUID), all.SetAt)
	}
	problems = append(problems, x.NodeRegistry.LostNodeProblems(ctx)...)
	if x.Pool.IsDraining() {
		add("the service is draining, so no jobs start; end the drain with: %s", x.DrainState.CommandToEndDrain(x.NodeName))
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
func (x *Examiner) ExplainMissingRunner() (cause, nextStep string) {
	err := x.Pool.RunnerSpawnError()
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
func (x *Examiner) launcherProblem() string {
	if text, next := x.ExplainMissingRunner(); text != "" {
		return text + "; " + next
	}
	var launcherErr *runner.LauncherError
	if errors.As(x.RunnerLocation.CheckLauncher(), &launcherErr) {
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
	return []store.Finding{Failure("launcher", launcherErr.Error(), launcherErr.Advice)}
}
