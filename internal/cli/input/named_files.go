package input

import (
	"cmp"
	"errors"
	"fmt"
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

// This file warns about missing files. A job that names a missing file ends at its first attempt.
// But the file may be created before the job starts, so the job is accepted with a warning.

// maxNamedFiles is how many files of one request are checked.
const maxNamedFiles = 100

// statWithin is how long a check waits for a file system to answer.
const statWithin = 200 * time.Millisecond

// NamedFiles is the set of files that were checked because new jobs name them. If the set contains
// the empty namedFile, a file system did not answer in time. Then no more files are checked.
type NamedFiles map[namedFile]bool

// namedFile is a file that a job names in a field.
type namedFile struct{ field, path string }

// Warn prints a warning for each file of the spec that this user sees as missing or of the wrong
// kind. It checks the working directory, the input, the secrets and the program. It checks each
// file only once.
func (n NamedFiles) Warn(o *term.Output, cmd *cobra.Command, s *queue.Spec) {
	if s.Cwd != nil {
		n.check(o, cmd, "cwd", *s.Cwd, faultOfDir)
	}
	if s.StdinFile != nil {
		n.check(o, cmd, "stdin_file", *s.StdinFile, faultOfInput)
	}
	for _, name := range slices.Sorted(maps.Keys(s.EnvSecret)) {
		n.check(o, cmd, "env_secret", s.EnvSecret[name], faultOfInput)
	}
	if len(s.Argv) > 0 {
		n.checkProgram(o, cmd, s, s.Argv[0])
	}
}

// check checks a file with the function fault and prints a warning with the result. It skips a path
// that is not absolute.
func (n NamedFiles) check(o *term.Output, cmd *cobra.Command, field, path string, fault func(path string) string) {
	if filepath.IsAbs(path) {
		n.print(o, cmd, field, path, fault)
	}
}

// checkProgram checks a program like check does. The system searches PATH for a name without a
// directory. So such a name is checked only if the job has the same PATH as this process.
func (n NamedFiles) checkProgram(o *term.Output, cmd *cobra.Command, s *queue.Spec, program string) {
	switch {
	case filepath.Base(program) == program:
		if s.Env["PATH"] == os.Getenv("PATH") {
			n.print(o, cmd, "program", program, faultOfProgram)
		}
	case s.Cwd != nil && !filepath.IsAbs(program):
		n.check(o, cmd, "program", filepath.Join(*s.Cwd, program), faultOfProgram)
	default:
		n.check(o, cmd, "program", program, faultOfProgram)
	}
}

// print checks a file with the function faultOf and prints a warning with the result. It does
// nothing if the file was checked before.
func (n NamedFiles) print(o *term.Output, cmd *cobra.Command, field, path string, faultOf func(path string) string) {
	file := namedFile{field, path}
	if n[file] || n[namedFile{}] || len(n) == maxNamedFiles {
		return
	}
	n[file] = true
	checked := make(chan string, 1)
	// The check runs in a goroutine, because it may hang on a file system that does not answer.
	go func() { checked <- faultOf(path) }()
	select {
	case fault := <-checked:
		if fault != "" {
			o.Progress("")
			fmt.Fprintf(o.Stderr, "queuectl: %s: %s %s\n",
				cmp.Or(FlagsByField(cmd)[field], field), o.Clean(o.Stderr, path), fault)
		}
	case <-time.After(statWithin):
		n[namedFile{}] = true
	}
}

// missingFile is the warning for a file that does not exist.
const missingFile = "does not exist; the job fails unless you create it before the job starts"

// faultOfDir returns why jobs could not run in path: it does not exist, or is not a directory. It
// returns "" if neither is known.
func faultOfDir(path string) string {
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return missingFile
	case err == nil && !info.IsDir(), errors.Is(err, syscall.ENOTDIR):
		return "is not a directory; the job fails unless you replace it with a directory before the job starts"
	}
	return ""
}

// faultOfInput returns why jobs could not read path: it does not exist, or is not a regular file.
// It returns "" if neither is known.
func faultOfInput(path string) string {
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return missingFile
	case err == nil && !info.Mode().IsRegular():
		return "is not a regular file; the job fails unless you replace it with one before the job starts"
	}
	return ""
}

// faultOfProgram returns why jobs could not start a program: it does not exist, or is not in PATH.
// It returns "" if neither is known.
func faultOfProgram(program string) string {
	switch _, err := exec.LookPath(program); {
	case filepath.Base(program) == program && errors.Is(err, exec.ErrNotFound):
		return "is not in PATH; the job fails unless you install it before the job starts"
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return missingFile
	}
	return ""
}
