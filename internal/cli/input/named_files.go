package input

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/queue"
)

// This file warns about missing files. If a job names a missing file, its attempts fail. But the file may still be
// created before the job starts, so a missing file is only a warning and not an error.

// maxCheckedFiles is the maximum number of files that one command checks.
const maxCheckedFiles = 100

// fileStatTimeout is how long a check waits for a file system to answer.
const fileStatTimeout = 200 * time.Millisecond

// CheckedFiles is the set of the files that a command has checked because new jobs name them. If a file system did not
// answer in time, the set also contains the zero checkedFile, and no more files are checked.
type CheckedFiles map[checkedFile]bool

// checkedFile is a file that a job names in a field.
type checkedFile struct{ field, path string }

// WarnUnusableFiles prints a warning for each file of the spec that is missing, or of the wrong type. It checks the
// working directory, the input, the secrets and the program, each file once.
func (n CheckedFiles) WarnUnusableFiles(o *term.Output, cmd *cobra.Command, s *queue.Spec) {
	check := func(field, path string, faultOf func(path string) string) {
		if filepath.IsAbs(path) {
			n.warnIfUnusable(o, cmd, field, path, faultOf)
		}
	}
	if s.Cwd != nil {
		check("cwd", *s.Cwd, dirProblem)
	}
	if s.StdinFile != nil {
		check("stdin_file", *s.StdinFile, inputFileProblem)
	}
	for _, name := range slices.Sorted(maps.Keys(s.EnvSecret)) {
		check("env_secret", s.EnvSecret[name], inputFileProblem)
	}
	if len(s.Argv) == 0 {
		return
	}
	switch program := s.Argv[0]; {
	// The system searches PATH for a program without a directory. So check such a program only if the job has the same
	// PATH as this process.
	case filepath.Base(program) == program:
		if s.Env["PATH"] == os.Getenv("PATH") {
			n.warnIfUnusable(o, cmd, "program", program, programProblem)
		}
	case s.Cwd != nil && !filepath.IsAbs(program):
		check("program", filepath.Join(*s.Cwd, program), programProblem)
	default:
		check("program", program, programProblem)
	}
}

// warnIfUnusable checks a file by calling findPathProblem, which returns "" for a file without a fault. It prints the
// fault as a warning. It does nothing if the file was already checked.
func (n CheckedFiles) warnIfUnusable(o *term.Output, cmd *cobra.Command, field, path string,
	findPathProblem func(path string) string) {
	file := checkedFile{field, path}
	if n[file] || n[checkedFile{}] || len(n) == maxCheckedFiles {
		return
	}
	n[file] = true
	checked := make(chan string, 1)
	// Check in a goroutine, because a file system that does not answer may block the check.
	go func() { checked <- findPathProblem(path) }()
	select {
	case fault := <-checked:
		if fault != "" {
			o.ShowProgress("")
			o.PrintMessage("%s: %s %s", cmp.Or(FlagsByField(cmd)[field], field), path, fault)
		}
	case <-time.After(fileStatTimeout):
		n[checkedFile{}] = true
	}
}

// missingFileWarning is the warning for a file that does not exist.
const missingFileWarning = "does not exist; the job fails unless you create it before the job starts"

// dirProblem returns why jobs cannot use path as their working directory: it does not exist, or is not a
// directory. It returns "" if jobs can use path, or if the check fails.
func dirProblem(path string) string {
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return missingFileWarning
	case err == nil && !info.IsDir(), errors.Is(err, syscall.ENOTDIR):
		return "is not a directory; the job fails unless you replace it with a directory before the job starts"
	}
	return ""
}

// inputFileProblem returns why jobs cannot read path: it does not exist, or is not a regular file. It returns "" if
// jobs can read path, or if the check fails.
func inputFileProblem(path string) string {
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return missingFileWarning
	case err == nil && !info.Mode().IsRegular():
		return "is not a regular file; the job fails unless you replace it with one before the job starts"
	}
	return ""
}

// programProblem returns why jobs cannot start a program: it does not exist, or is not in PATH. It returns ""
// if jobs can start the program, or if the check fails.
func programProblem(program string) string {
	switch _, err := exec.LookPath(program); {
	case filepath.Base(program) == program && errors.Is(err, exec.ErrNotFound):
		return "is not in PATH; the job fails unless you install it before the job starts"
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return missingFileWarning
	}
	return ""
}
