//go:build unix

package runner

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/internal/cleanstart"
)

// spawnRunner starts a runner in its own session, so that the runner outlives this process. It waits until the
// runner accepts connections, and returns the name of the runner's directory. If possible, the user's systemd
// manager gives the runner a control group that it can divide.
func (l RunnersLocation) spawnRunner(forIsolatedJob bool) (dirName string, err error) {
	if err := os.MkdirAll(l.RunnersDir, 0o700); err != nil {
		return "", fmt.Errorf("cannot create the runner directory: %w", err)
	}
	if err := l.checkWorkspacesDir(); err != nil {
		return "", err // report the error here, because a started runner could only log it
	}
	args := l.runnerArgs(forIsolatedJob)
	if l.RunnerLog != nil && l.RunnerLog.Name() != os.Stderr.Name() {
		args = append(args, "--log", l.RunnerLog.Name()) // the runner needs the path to reopen the file
	}
	for _, scope := range systemdScopeCommandPrefixes() {
		cmd := NewDetachedCommand(append(scope, l.RunnerCommand...), append(args, "--delegated")...)
		cmd.Stderr, cmd.Env = l.RunnerLog, append(cmd.Env, "XDG_RUNTIME_DIR="+systemdUserSocketDir())
		if dirName, err = startAndAwaitReady(cmd, func() {}); err == nil {
			return dirName, nil
		}
	}
	cmd := NewDetachedCommand(l.RunnerCommand, args...)
	cmd.Stderr = l.RunnerLog
	return startAndAwaitReady(cmd, func() {})
}

// ReopenRunnerLogs makes the living runners of the service's own account reopen their log files. The service calls it
// when a log rotation has moved these files.
func (l RunnersLocation) ReopenRunnerLogs() {
	if l.HasExternalRunnersDir() {
		return
	}
	live, _ := l.ListLivingRunnerDirs() // if a runner is not found, it keeps using the moved file
	for _, dir := range live {
		if pid := LivingRunnerPID(dir); pid > 0 {
			syscall.Kill(int(pid), syscall.SIGHUP)
		}
	}
}

// NewDetachedCommand returns a command that starts this program again, as a runner or as the launcher, with the command
// line argv and extraArgs. The new process outlives this process. So it must not inherit descriptors that this process
// has inherited.
func NewDetachedCommand(argv []string, extraArgs ...string) *exec.Cmd {
	cleanstart.SetCloseOnExec() // if this fails, the new process inherits the descriptors
	cmd := exec.Command(argv[0], append(argv[1:len(argv):len(argv)], extraArgs...)...)
	cmd.Env, cmd.Dir = InheritedRunnerEnv(), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// startAndAwaitReady starts a runner, waits until the runner calls ReportReady, and returns the name of its
// directory. onExit is called when the runner has ended.
func startAndAwaitReady(cmd *exec.Cmd, onExit func()) (dirName string, err error) {
	ready, out, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer ready.Close()
	cmd.ExtraFiles = []*os.File{out} // descriptor 3 of the new process, which ReportReady uses
	err = cmd.Start()
	out.Close()
	if err != nil {
		return "", err
	}
	go func() {
		cmd.Wait() // cmd.ProcessState says how the command ended
		onExit()
	}()
	ready.SetReadDeadline(time.Now().Add(SpawnTimeout))
	if dirName, err = readSpawnReply(ready); err != nil {
		cmd.Process.Kill() // the caller does not know the runner's directory and cannot use the runner, so end it
	}
	return dirName, err
}

// ReportReady reports the name of this runner's directory to the process that started the runner, on
// descriptor 3.
func ReportReady(runnerDir string) {
	f := os.NewFile(3, "ready")
	fmt.Fprintln(f, ReadyReplyPrefix+filepath.Base(runnerDir)) // does not block if the other process has ended
	f.Close()
}

// InheritedRunnerEnv returns the part of the service's environment that a runner gets: the variables that this
// program and its Go runtime read.
func InheritedRunnerEnv() []string {
	return append(presentEnvVars("QUEUECTL_FAILPOINTS", "QUEUECTL_TIMERSLACK", "GOTRACEBACK", "GOCOVERDIR"),
		"PATH=/usr/local/bin:/usr/bin:/bin")
}

// RemoveProgramCopies returns true: on this system, runners do not run copies of the program.
func RemoveProgramCopies(string) bool { return true }
