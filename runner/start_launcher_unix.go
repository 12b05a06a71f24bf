//go:build unix

package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// LauncherSocketName is the name of the launcher's socket in the runners' directory. The launcher exists only on
// systems without systemd. With systemd, a unit provides the socket instead.
const LauncherSocketName = "spawn.sock"

// StartLauncher starts the launcher: the process that starts root's runners on systems without systemd. The caller must
// be root. For each connection from the service's account, the launcher starts a runner with the command line
// runnerArgv. serviceUID and serviceGID are the ids of the service's account. The launcher ends when this process ends.
func StartLauncher(runnerArgv []string, runnersDir, policyFile string, serviceUID, serviceGID int,
	log *os.File) (l Launcher, err error) {
	// Nothing is written to this pipe. When lifeline, the writing end, is closed, the launcher ends.
	end, lifeline, err := os.Pipe()
	if err != nil {
		return l, fmt.Errorf("cannot start the launcher: %w", err)
	}
	defer end.Close()
	cmd := NewDetachedCommand(runnerArgv, "--dir", runnersDir, "--policy", policyFile, "--launcher",
		strconv.Itoa(serviceUID)+":"+strconv.Itoa(serviceGID))
	cmd.Stdin, cmd.Stderr = end, log
	exited := make(chan error, 1)
	_, err = startAndAwaitReady(cmd, func() {
		lifeline.Close()
		exited <- &LauncherError{PID: cmd.Process.Pid, Problem: "ended (" + cmd.ProcessState.String() + ")"}
	})
	if err != nil {
		lifeline.Close() // the launcher, if it runs, ends when its pipe is closed
		return l, fmt.Errorf("cannot start the launcher: %w", err)
	}
	return Launcher{SocketPath: filepath.Join(runnersDir, LauncherSocketName), PID: cmd.Process.Pid, ExitError: exited},
		nil
}
