package runner

import (
	"fmt"

	"github.com/queuectl/queuectl/runner/process"
)

// Launcher describes the launcher: the process that runs as root and, on systems without systemd, starts
// root's runners.
type Launcher struct {
	SocketPath string       // path of the socket; each connection to it starts a runner
	PID        int          // process id; 0 if this service did not start the launcher
	ExitError  <-chan error // receives one LauncherError when the launcher has ended; nil if PID is 0
}

// LauncherError means that no process can currently start a runner as root.
type LauncherError struct {
	PID     int    // pid of the launcher, or of systemd; 0 if no process listens on the socket
	Problem string // what is wrong with the process; if PID is 0, what is wrong with the socket
	Advice  string // what an operator can do
}

// Error names the process and the problem. It omits Advice, because the service shows Advice separately.
func (e *LauncherError) Error() string {
	if e.PID == 0 {
		return e.Problem
	}
	return fmt.Sprintf("the launcher (process %d) %s", e.PID, e.Problem)
}

// CheckLauncher returns a LauncherError if the launcher of this service is stopped, for example by
// SIGSTOP. It reads /proc and sends nothing to the launcher.
func (l RunnersLocation) CheckLauncher() error { return stoppedLauncherError(l.LauncherPID) }

// stoppedLauncherError returns a LauncherError if a process is stopped. It returns nil for pid 0.
func stoppedLauncherError(pid int) error {
	if pid == 0 || !process.IsStopped(pid) {
		return nil
	}
	next := fmt.Sprintf("resume this process as root: kill -CONT %d", pid)
	return &LauncherError{PID: pid, Problem: "is stopped and cannot start runners for jobs", Advice: next}
}
