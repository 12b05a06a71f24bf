package daemon

import (
	"fmt"
	"path/filepath"

	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// handleRecover answers a Recover request: it ends the remaining processes of a dead runner's attempts.
func (s *server) handleRecover(c *serviceConn, f *wire.EndProcessTrees) {
	dir, err := "", error(nil)
	if f.RunnerName != "" {
		dir, err = s.deadRunnerDir(f.RunnerName)
	}
	var answer wire.EndProcessTreesReply
	if err == nil {
		answer, err = runner.EndProcessTrees(dir, f.Attempts)
	}
	if answer.RequestID = f.RequestID; err != nil {
		answer.Error = err.Error()
	}
	c.SendFrames(&answer)
}

// removeDeadRunner removes the directory of the dead runner with the given name. If that fails, it logs the error.
func (s *server) removeDeadRunner(runnerName string) {
	dir, err := s.deadRunnerDir(runnerName)
	if err == nil {
		err = rundir.RemoveDeadRunnerDir(dir)
	}
	if err != nil {
		s.Log.Error("the service requested the removal of a dead runner's directory, but it was not removed", "error", err)
	}
}

// deadRunnerDir returns the directory of the dead runner with the given name. It returns an error if the name is
// invalid, or if the runner is alive.
func (s *server) deadRunnerDir(runnerName string) (string, error) {
	dir := filepath.Join(s.RunnersDir, runnerName)
	if !filepath.IsLocal(runnerName) || filepath.Base(runnerName) != runnerName || runnerName[0] == '.' ||
		!rundir.IsRunnerDirName(runnerName) {
		return "", fmt.Errorf("%s is not a runner's directory; this is a bug in queuectl; please report it", dir)
	}
	alive, err := runner.IsAlive(dir)
	if err != nil {
		return "", err
	}
	if alive {
		return "", fmt.Errorf("the runner in %s may still be alive, because a process locks its file %q; if this message "+
			"repeats, see: queuectl doctor", dir, rundir.LockFileName)
	}
	return dir, nil
}
