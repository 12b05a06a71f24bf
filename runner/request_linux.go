package runner

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/internal/sockpath"
	"github.com/queuectl/queuectl/runner/rundir"
)

// requestRunner sends a request to SpawnSocket. The launcher or systemd, which listens on the socket, starts
// a new process with the connection as its standard input. This process replies with the name of the runner's
// directory, which requestRunner returns.
func (l Location) requestRunner(r SpawnRequest) (dirName string, err error) {
	if err := l.CheckLauncher(); err != nil {
		return "", err
	}
	c, err := sockpath.DialWithin(l.SpawnSocket, StartTimeout)
	if err != nil {
		return "", l.unreachableError(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(StartTimeout))
	if _, err := fmt.Fprintln(c, r); err != nil {
		return "", err
	}
	dirName, err = readReadyReply(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = l.noReplyError(int(rundir.PeerPID(c)), err)
	}
	return dirName, err
}

// unreachableError explains a failed connection to SpawnSocket. If no process listens, the returned error
// says what an operator can do.
func (l Location) unreachableError(err error) error {
	if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("socket %s: %w", l.SpawnSocket, err)
	}
	return &LauncherError{
		Problem: fmt.Sprintf("no launcher listens on the socket %s (%v)", l.SpawnSocket, err),
		Advice:  "start the launcher: systemctl start queuectl-runner.socket (without systemd: restart the service)",
	}
}

// noReplyError explains why no reply to a request came within StartTimeout. pid is the process that listens
// on SpawnSocket: the launcher or systemd.
func (l Location) noReplyError(pid int, err error) error {
	if stopped := stoppedLauncherError(pid); stopped != nil {
		return stopped
	}
	if pid == 0 || l.SpawnsOwnAccount {
		return err
	}
	next := fmt.Sprintf("as root, find out what process %d is waiting for: cat /proc/%[1]d/stack; "+
		"if the process hangs, run kill -KILL %[1]d and restart the service", pid)
	if pid == 1 {
		next = "see the runner's log: journalctl -u 'queuectl-runner@*'"
	}
	return &LauncherError{PID: pid, Problem: fmt.Sprintf("started no runner within %v", StartTimeout), Advice: next}
}
