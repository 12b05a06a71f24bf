package service

import (
	"context"
	"errors"
	"fmt"

	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/store"
)

// watchLauncher returns an error when the launcher of this service has ended, and nil when ctx has ended. The
// service is no longer root, so it cannot start another launcher. It ends and must be started again as root.
func (s *Service) watchLauncher(ctx context.Context) error {
	select {
	case err := <-s.launcher.Ended:
		return endWithLauncher(err)
	case <-ctx.Done():
		return nil
	}
}

// endWithLauncher returns the error with which the service ends because its launcher has ended.
func endWithLauncher(err error) error {
	return fmt.Errorf("%w, so the service ends too; start the service again as root (running jobs continue)", err)
}

// noRunner explains that no job can start because there is no runner. It returns the cause and the next
// step for the user. The text is "" if there is a runner, or if the first try to start one is still in
// progress. nodeReasons, status and doctor use it.
func (h *healthCheck) noRunner() (text, next string) {
	err := h.pool.NoRunner()
	var launcher *runner.LauncherError
	switch {
	case err == nil:
		return "", ""
	case errors.As(err, &launcher):
		return fmt.Sprintf("no jobs can start: %v", launcher), launcher.Next
	}
	return fmt.Sprintf("no jobs can start: %v", err), "the service tries again; see its log"
}

// launcherProblem returns the line of status about runners that cannot start. It reports a launcher that
// has stopped even if a runner still exists for the jobs. It returns "" if no problem is known.
func (h *healthCheck) launcherProblem() string {
	if text, next := h.noRunner(); text != "" {
		return text + "; " + next
	}
	var launcher *runner.LauncherError
	if errors.As(h.home.CheckLauncher(), &launcher) {
		return launcher.Error() + "; " + launcher.Next
	}
	return ""
}

// examineLauncher reports a launcher that does not start runners.
func (d *Examiner) examineLauncher() []store.Finding {
	var launcher *runner.LauncherError
	if !errors.As(d.home.CheckLauncher(), &launcher) && !errors.As(d.pool.NoRunner(), &launcher) {
		return nil
	}
	return []store.Finding{{Check: "launcher", Level: store.Failure, Message: launcher.Error(), Next: launcher.Next}}
}
