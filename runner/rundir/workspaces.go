package rundir

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/queuectl/queuectl/internal/atomicfile"
	"github.com/queuectl/queuectl/runner/privdir"
)

// The private directories of jobs (QUEUECTL_TMPDIR) are in one directory for each runner.
//
// By default, this directory is ROOT/jobs/RUNNER. ROOT is the runners' directory, and RUNNER is the name of the runner.
// With job_tmpdir = /mnt/scratch, the directory is /mnt/scratch/RUNNER, and the runner first stores the text
// /mnt/scratch in the file ROOT/RUNNER/tmpdir. When a dead runner's directory is removed, this file shows where the
// private directories are, even if job_tmpdir has changed. The file does not contain the last part of the path, the
// runner's name. So even if the file was manipulated, only a directory with this name can be removed.

// JobTmpdirSetting is the name of the setting job_tmpdir, in queuectl.toml and in runner.conf.
const JobTmpdirSetting = "job_tmpdir"

// maxTmpdirFileBytes bounds the file that StoreJobTmpdir writes, in bytes.
const maxTmpdirFileBytes = 8 << 10

// StoreJobTmpdir stores the job_tmpdir of a runner in the runner's directory, so that it survives a power cut.
func StoreJobTmpdir(runnerDir, jobTmpdir string, mode os.FileMode) error {
	return atomicfile.Write(filepath.Join(runnerDir, jobTmpdirFileName), []byte(AppendChecksum(jobTmpdir)), mode)
}

// ReadJobTmpdir returns the job_tmpdir of the runner whose directory is runnerDir, or "" if the runner has none.
func ReadJobTmpdir(runnerDir string) (string, error) {
	return ReadChecksummedFile(filepath.Join(runnerDir, jobTmpdirFileName), maxTmpdirFileBytes)
}

// workspacesRemoveTimeout limits the time that is spent on removing all private directories of a runner.
const workspacesRemoveTimeout = 20 * time.Second

// CheckJobTmpdir returns an error if the directory path is unsuitable as job_tmpdir. No other account may be able to
// change it. It must not be inside runnersDir, because one of its subdirectories could then have the same path as a
// runner's directory. If otherAccountsMayEnter is true, other accounts must be able to enter it.
func CheckJobTmpdir(path, runnersDir string, otherAccountsMayEnter bool) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("%s: %w; create this directory, or change the setting", JobTmpdirSetting, err)
	}
	// If EvalSymlinks fails, runnersDir does not exist yet.
	if resolved, err := filepath.EvalSymlinks(runnersDir); err == nil {
		runnersDir = resolved
	}
	const separator = string(filepath.Separator)
	if strings.HasPrefix(real+separator, runnersDir+separator) {
		return errors.New(JobTmpdirSetting + ": " + path + " is inside the runner directory; choose a directory outside it")
	}
	if err := checkParentDirs(path, real, otherAccountsMayEnter); err != nil {
		return fmt.Errorf("%s: %w", JobTmpdirSetting, err)
	}
	return nil
}

// CreateRunnerWorkspaces creates the directory for the private directories of a runner's jobs, and returns its path.
// jobTmpdir is the value of the setting job_tmpdir; "" means that it is not set. If otherAccountsMayEnter is true,
// other accounts can enter the directory to reach their own files, but cannot list it.
func CreateRunnerWorkspaces(runnersDir, jobTmpdir, runnerName string, otherAccountsMayEnter bool) (string, error) {
	parent := jobTmpdir
	var err error
	if parent == "" {
		parent = filepath.Join(runnersDir, WorkspacesDirName)
		err = ensureWorkspacesDir(parent, otherAccountsMayEnter)
	} else {
		err = CheckJobTmpdir(parent, runnersDir, otherAccountsMayEnter)
	}
	if err != nil {
		return "", err
	}
	dir := filepath.Join(parent, runnerName)
	return dir, ensureWorkspacesDir(dir, otherAccountsMayEnter)
}

// ensureWorkspacesDir creates a directory, or checks it if it exists.
func ensureWorkspacesDir(dir string, otherAccountsMayEnter bool) error {
	mode := os.FileMode(0o700)
	if otherAccountsMayEnter {
		mode = 0o711
	}
	err := os.Mkdir(dir, mode)
	if err == nil {
		err = os.Chmod(dir, mode) // sets the exact mode, no matter which umask or setgid parent applies
	}
	if errors.Is(err, os.ErrExist) {
		err = CheckWorkspacesDir(dir)
	}
	if err != nil {
		return fmt.Errorf("cannot create the directory for private directories of jobs: %w", err)
	}
	return nil
}

// RemoveDeadRunnerDir removes a dead runner's directory and the private directories of its jobs. It removes each
// private directory with the rights of the account that owns it. If it cannot remove one, it continues with
// the others.
func RemoveDeadRunnerDir(runnerDir string) error {
	tmpdir, err := ReadJobTmpdir(runnerDir)
	for _, parent := range []string{filepath.Join(filepath.Dir(runnerDir), WorkspacesDirName), tmpdir} {
		if parent != "" {
			err = cmp.Or(RemoveWorkspaces(filepath.Join(parent, filepath.Base(runnerDir))), err)
		}
	}
	return errors.Join(err, os.RemoveAll(runnerDir))
}

// RemoveWorkspaces removes the directory with the private directories of a runner's jobs. None of the jobs
// may be running. If it has not finished after workspacesRemoveTimeout, it stops.
func RemoveWorkspaces(workspacesDir string) error {
	deadline := time.Now().Add(workspacesRemoveTimeout)
	list, err := os.ReadDir(workspacesDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range list {
		path := filepath.Join(workspacesDir, e.Name())
		if !e.IsDir() {
			err = errors.Join(err, os.Remove(path))
			continue
		}
		owner, failed := privdir.OwnerIdentity(path)
		more := failed == nil
		for more && failed == nil && time.Now().Before(deadline) {
			more, failed = privdir.RemoveDirStep(path, owner)
		}
		if failed == nil && more {
			failed = fmt.Errorf("%s still has files, because there was too little time; remove it", path)
		}
		err = errors.Join(err, failed)
	}
	if err != nil {
		return err
	}
	return os.Remove(workspacesDir)
}
