package runner

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/copies"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
)

// spawnRunner starts a runner that outlives this process, with a console but without a window. It waits until the
// runner accepts connections, and returns the name of the runner's directory.
//
// Windows cannot replace a running program, but an update must be possible while jobs run. So the runner runs a copy of
// the program, which normally was installed next to the program. If this copy is missing, spawnRunner makes a copy in
// the runners' directory. There, a policy of the machine may forbid programs to run. See docs/decisions/0089.
func (l RunnersLocation) spawnRunner(forIsolatedJob bool) (dirName string, err error) {
	return l.spawnRunnerWith((*exec.Cmd).Start, forIsolatedJob)
}

// spawnRunnerWith implements spawnRunner. It starts the runner with startCommand.
func (l RunnersLocation) spawnRunnerWith(startCommand func(*exec.Cmd) error, forIsolatedJob bool) (dirName string,
	err error) {
	if err := os.MkdirAll(l.RunnersDir, 0o700); err != nil {
		return "", fmt.Errorf("cannot create the runner folder: %w", err)
	}
	if err := l.checkWorkspacesDir(); err != nil {
		return "", err // report the error here, because a started runner could only log it
	}
	copyDir := filepath.Join(l.RunnersDir, rundir.ProgramsDirName)
	program, err := copies.FindCopy(l.RunnerCommand[0], copies.CopiesDir(l.RunnerCommand[0]), copyDir)
	if err == nil && program == "" {
		copies.RemoveCopies(copyDir) // remove the copies of earlier versions
		program, err = copies.EnsureCopy(l.RunnerCommand[0], copyDir)
	}
	if err != nil {
		return "", fmt.Errorf("cannot copy the program for the runner: %w", err)
	}
	args := slices.Concat(l.RunnerCommand[1:], l.runnerArgs(forIsolatedJob))
	ready, out, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer ready.Close()
	var cmd *exec.Cmd
	// If the service is in a job object, its processes may end together with the service. So first try to start the runner
	// outside the job object.
	for _, breakaway := range []uint32{windows.CREATE_BREAKAWAY_FROM_JOB, 0} {
		cmd = exec.Command(program, args...)
		cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = InheritedRunnerEnv(), l.RunnersDir, out, l.RunnerLog
		cmd.SysProcAttr = &syscall.SysProcAttr{
			CreationFlags: windows.CREATE_NO_WINDOW | windows.CREATE_NEW_PROCESS_GROUP | breakaway,
		}
		if err = startCommand(cmd); !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
			break
		}
	}
	out.Close()
	if err != nil {
		return "", process.ExplainBlockedProgram(program, err)
	}
	go cmd.Wait() // this goroutine ends when the runner or this process ends
	timer := time.AfterFunc(SpawnTimeout, func() { cmd.Process.Kill() })
	defer timer.Stop()
	return readSpawnReply(ready)
}

// ReopenRunnerLogs does nothing: on Windows, an open file cannot be moved.
func (l RunnersLocation) ReopenRunnerLogs() {}

// RemoveProgramCopies removes the copies of the program in a runners' directory, except copies that are running. It
// reports whether it has removed all copies.
func RemoveProgramCopies(runnersDir string) bool {
	return copies.RemoveCopies(filepath.Join(runnersDir, rundir.ProgramsDirName))
}

// ReportReady reports the name of this runner's directory to the process that started it, on standard output.
func ReportReady(runnerDir string) {
	fmt.Println(ReadyReplyPrefix + filepath.Base(runnerDir)) // does not block if the other process has ended
	os.Stdout.Close()
}

// InheritedRunnerEnv returns the part of the service's environment that a runner gets: the variables that Windows
// programs, this program and its Go runtime read.
func InheritedRunnerEnv() []string {
	return presentEnvVars(
		"SystemRoot", "SystemDrive", "windir", "ComSpec", "PATH", "PATHEXT", "TEMP", "TMP",
		"USERPROFILE", "APPDATA", "LOCALAPPDATA", "ProgramData",
		"QUEUECTL_FAILPOINTS", "GOTRACEBACK", "GOCOVERDIR")
}
