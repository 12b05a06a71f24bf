package runner

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/runner/rundir"
)

// RunnerHasCurrentJobTmpdir reports whether the runner with the directory runnerDir has the job_tmpdir that a new
// runner would get. It returns true for root's runners: their job_tmpdir is in root's policy file, so the settings of
// the service do not change it.
func (l RunnersLocation) RunnerHasCurrentJobTmpdir(runnerDir string) bool {
	if l.HasExternalRunnersDir() {
		return true
	}
	tmpdir, err := rundir.ReadJobTmpdir(runnerDir)
	return err == nil && tmpdir == l.JobTmpdir
}

// CheckJobTmpdir returns an error if the setting job_tmpdir would prevent runners of the service's own account from
// starting.
func (l RunnersLocation) CheckJobTmpdir() error {
	if l.JobTmpdir == "" {
		return nil
	}
	return rundir.CheckJobTmpdir(l.JobTmpdir, l.RunnersDir, false)
}

// checkWorkspacesDir returns an error if the directory for the jobs' private directories is unsuitable. Then no runner
// of the service's own account could start.
func (l RunnersLocation) checkWorkspacesDir() error {
	if l.JobTmpdir != "" {
		return l.CheckJobTmpdir()
	}
	if err := rundir.CheckWorkspacesDir(filepath.Join(l.RunnersDir, rundir.WorkspacesDirName)); !errors.Is(err,
		os.ErrNotExist) {
		return err
	}
	return nil
}

// runnerArgs returns the flags with which the service starts a runner. They are the same on every system.
func (l RunnersLocation) runnerArgs(forIsolatedJob bool) []string {
	args := []string{"--dir", l.RunnersDir}
	if l.JobTmpdir != "" {
		args = append(args, "--job-tmpdir", l.JobTmpdir)
	}
	if forIsolatedJob {
		args = append(args, "--alone")
	}
	return args
}

// presentEnvVars returns those of the named environment variables that this process has, as NAME=value.
func presentEnvVars(names ...string) (env []string) {
	for _, name := range names {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}
