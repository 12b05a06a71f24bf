package runner

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/runner/rundir"
)

// HasTmpdir reports whether the runner of a directory has the job_tmpdir that new runners get. It
// returns true for root's runners, since their policy contains job_tmpdir, not the service's settings.
func (l Location) HasTmpdir(dir string) bool {
	if l.External() {
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

// checkWorkspaces returns an error if the directory for the private directories of jobs is
// unsuitable. In that case no runner of the service's own account could start.
func (l Location) checkWorkspaces() error {
	if l.Tmpdir != "" {
		return l.CheckTmpdir()
	}
	if err := rundir.CheckWorkspaces(filepath.Join(l.Dir, rundir.WorkspacesDirName)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// args returns the flags with which the service starts a runner on every system.
func (l Location) args(alone bool) []string {
	args := []string{"--dir", l.Dir}
	if l.Tmpdir != "" {
		args = append(args, "--job-tmpdir", l.Tmpdir)
	}
	if alone {
		args = append(args, "--alone")
	}
	return args
}

// inherited returns those of the named variables that this process has.
func inherited(names ...string) (env []string) {
	for _, name := range names {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}
