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

// sendSpawnRequest sends a request to the socket SpawnSocketPath. The launcher or systemd, which listens on the socket,
// starts a new process with the connection as its standard input. The new process replies with the name of the runner's
// directory. sendSpawnRequest returns this name.
func (l RunnersLocation) sendSpawnRequest(r SpawnRequest) (dirName string, err error) {
	if err := l.CheckLauncher(); err != nil {
		return "", err
	}
	c, err := sockpath.DialTimeout(l.SpawnSocketPath, SpawnTimeout)
	if err != nil {
		return "", l.spawnSocketError(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(SpawnTimeout))
	if _, err := fmt.Fprintln(c, r); err != nil {
		return "", err
	}
	dirName, err = readSpawnReply(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = l.noSpawnReplyError(int(rundir.PeerPID(c)), err)
	}
	return dirName, err
}

// spawnSocketError explains a failed connection to SpawnSocketPath. If no process listens, the returned error
// says what an operator can do.
func (l RunnersLocation) spawnSocketError(err error) error {
	if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("socket %s: %w", l.SpawnSocketPath, err)
	}
	return &LauncherError{
		Problem: fmt.Sprintf("no launcher listens on the socket %s (%v)", l.SpawnSocketPath, err),
		Advice:  "start the launcher: systemctl start queuectl-runner.socket (without systemd: restart the service)",
	}
}

// noSpawnReplyError explains why no reply to a request came within SpawnTimeout. listenerPID is the pid of the process
// that listens on SpawnSocketPath: the launcher or systemd.
func (l RunnersLocation) noSpawnReplyError(listenerPID int, err error) error {
	if stopped := stoppedLauncherError(listenerPID); stopped != nil {
		return stopped
	}
	if listenerPID == 0 || l.SpawnsAsServiceAccount {
		return err
	}
	next := fmt.Sprintf("as root, find out what process %d is waiting for: cat /proc/%[1]d/stack; "+
		"if the process hangs, run kill -KILL %[1]d and restart the service", listenerPID)
	if listenerPID == 1 {
		next = "see the runner's log: journalctl -u 'queuectl-runner@*'"
	}
	return &LauncherError{PID: listenerPID, Problem: fmt.Sprintf("started no runner within %v", SpawnTimeout),
		Advice: next}
}
