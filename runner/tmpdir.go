package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The private directories of jobs (QUEUECTL_TMPDIR) are in one directory for each runner.
//
// By default, that directory is ROOT/jobs/RUNNER. With job_tmpdir = /mnt/scratch, it is
// /mnt/scratch/RUNNER, and the runner first stores /mnt/scratch in a note in its own directory,
// ROOT/RUNNER/tmpdir. The process that removes a dead runner's directory reads the note, so it finds
// the private directories even if job_tmpdir has changed. The note does not contain the last part of
// the path. A manipulated note can therefore name only a directory with the runner's name.

// tmpdirKey is the name of the setting, in queuectl.toml and in runner.conf.
const tmpdirKey = "job_tmpdir"

// maxPath bounds a note that contains a path, in bytes.
const maxPath = 8 << 10

// startedTmpdir returns the job_tmpdir with which the runner of a directory was started. It returns ""
// if the runner has none.
func startedTmpdir(dir string) (string, error) {
	return readNote(filepath.Join(dir, tmpdirName), maxPath)
}

// HasTmpdir reports whether the runner of a directory has the job_tmpdir that new runners get. It
// returns true for root's runners, since their policy contains job_tmpdir, not the service's settings.
func (h Home) HasTmpdir(dir string) bool {
	if h.Foreign() {
		return true
	}
	tmpdir, err := startedTmpdir(dir)
	return err == nil && tmpdir == h.Tmpdir
}

// CheckTmpdir returns an error if no runner of the service's own account could start with the setting
// job_tmpdir.
func (h Home) CheckTmpdir() error {
	if h.Tmpdir == "" {
		return nil
	}
	return checkTmpdir(h.Tmpdir, h.Dir, false)
}

// checkWorkspaces returns an error if no runner of the service's own account could start, because the
// directory for private directories is unsuitable.
func (h Home) checkWorkspaces() error {
	if h.Tmpdir != "" {
		return h.CheckTmpdir()
	}
	if err := checkWorkspaces(filepath.Join(h.Dir, workspacesName)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// tmpdirArgs returns the flag that passes job_tmpdir to a new runner.
func (h Home) tmpdirArgs() []string {
	if h.Tmpdir == "" {
		return nil
	}
	return []string{"--job-tmpdir", h.Tmpdir}
}

// checkTmpdir returns an error if path is unsuitable as job_tmpdir: other accounts can change it, or it
// is inside root, the directory of the runners. Inside root, the subdirectories of path could have the
// same paths as the runners' directories. If othersEnter is true, it is also unsuitable if other
// accounts cannot enter it.
func checkTmpdir(path, root string, othersEnter bool) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("%s: %w; create this directory, or change the setting", tmpdirKey, err)
	}
	// If this fails, root does not exist yet.
	if resolved, err := filepath.EvalSymlinks(root); err == nil {
		root = resolved
	}
	const slash = string(filepath.Separator)
	if strings.HasPrefix(real+slash, root+slash) {
		return errors.New(tmpdirKey + ": " + path + " is inside the runner directory; choose a directory outside it")
	}
	if err := checkParents(path, real, othersEnter); err != nil {
		return fmt.Errorf("%s: %w", tmpdirKey, err)
	}
	return nil
}
