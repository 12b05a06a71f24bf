package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The private directories of jobs (QUEUECTL_TMPDIR) are in one directory for each runner. By default that is
// ROOT/jobs/RUNNER. With job_tmpdir = /mnt/scratch it is /mnt/scratch/RUNNER, and the runner first stores
// /mnt/scratch in its own directory, ROOT/RUNNER/tmpdir. The process that removes a dead runner's directory reads
// that note, so it finds the right place whatever job_tmpdir is by then. The note does not contain the last part of
// the path: a note that was tampered with names no directory but one of the runner's name.

// tmpdirKey is the name of the setting, in queuectl.toml and in runner.conf.
const tmpdirKey = "job_tmpdir"

// maxPath bounds a note of a path, in bytes.
const maxPath = 8 << 10

// tmpdirOf returns the job_tmpdir that the runner of a directory was started with, "" for none.
func tmpdirOf(dir string) (string, error) {
	return readNote(filepath.Join(dir, tmpdirName), maxPath)
}

// HasTmpdir reports whether the runner of a directory has the job_tmpdir that new runners get. That of root's runners
// is in their policy, not in the settings of the service.
func (h Home) HasTmpdir(dir string) bool {
	if h.Foreign() {
		return true
	}
	tmpdir, err := tmpdirOf(dir)
	return err == nil && tmpdir == h.Tmpdir
}

// CheckTmpdir refuses a job_tmpdir of the service's own runners with which none would start.
func (h Home) CheckTmpdir() error {
	if h.Tmpdir == "" {
		return nil
	}
	return checkTmpdir(h.Tmpdir, h.Dir, false)
}

// checkPlace refuses a directory of private directories with which no runner of the service's own account would start.
func (h Home) checkPlace() error {
	if h.Tmpdir != "" {
		return h.CheckTmpdir()
	}
	if err := checkPlace(filepath.Join(h.Dir, placesName)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// tmpdirWords returns the flag that passes job_tmpdir to a new runner.
func (h Home) tmpdirWords() []string {
	if h.Tmpdir == "" {
		return nil
	}
	return []string{"--job-tmpdir", h.Tmpdir}
}

// checkTmpdir refuses a job_tmpdir that is not a directory of this account alone, or that is in root, the directory of
// the runners: a runner's own directory would have the same path. With pass, other accounts must be able to reach
// what is in it.
func checkTmpdir(path, root string, pass bool) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("%s: %w; create this directory, or change the setting", tmpdirKey, err)
	}
	if resolved, err := filepath.EvalSymlinks(root); err == nil { // else it is not made yet
		root = resolved
	}
	const slash = string(filepath.Separator)
	if strings.HasPrefix(real+slash, root+slash) {
		return errors.New(tmpdirKey + ": " + path + " is inside the runner directory; choose a directory outside it")
	}
	if err := checkPrivate(path, real, pass); err != nil {
		return fmt.Errorf("%s: %w", tmpdirKey, err)
	}
	return nil
}
