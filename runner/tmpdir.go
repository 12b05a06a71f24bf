package runner

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/runner/rundir"
)

// HasTmpdir reports whether the runner that uses a directory has the job_tmpdir that a new runner would get.
// It returns true for root's runners, because the service's settings do not determine their job_tmpdir:
// root's policy file does.
func (l Location) HasTmpdir(dir string) bool {
	if l.IsExternal() {
		return true
	}
	tmpdir, err := rundir.ReadTmpdir(dir)
	return err == nil && tmpdir == l.Tmpdir
}

// CheckTmpdir returns an error if no runner of the service's own account could start with the setting
// job_tmpdir.
func (l Location) CheckTmpdir() error {
	if l.Tmpdir == "" {
		return nil
	}
	return rundir.CheckTmpdir(l.Tmpdir, l.Dir, false)
}

// checkWorkspacesDir returns an error if the directory for the jobs' private directories is unsuitable, so
// that no runner of the service's own account could start.
func (l Location) checkWorkspacesDir() error {
	if l.Tmpdir != "" {
		return l.CheckTmpdir()
	}
	if err := rundir.CheckWorkspaces(filepath.Join(l.Dir, rundir.WorkspacesDirName)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// runnerArgs returns the flags with which the service starts a runner. They are the same on every system.
func (l Location) runnerArgs(isolated bool) []string {
	args := []string{"--dir", l.Dir}
	if l.Tmpdir != "" {
		args = append(args, "--job-tmpdir", l.Tmpdir)
	}
	if isolated {
		args = append(args, "--alone")
	}
	return args
}

// environOf returns those of the named environment variables that this process has, as NAME=value.
func environOf(names ...string) (env []string) {
	for _, name := range names {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}
