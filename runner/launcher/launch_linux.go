package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/rundir"
)

// launcherLockFileName is the name of the lock file in the runners' directory. The launcher, the root process
// that starts runners, keeps this file locked.
const launcherLockFileName = "launcher.lock"

// acceptRetryDelay is the pause before the launcher tries again after it could not accept a connection.
const acceptRetryDelay = 100 * time.Millisecond

// RunLauncher runs the launcher until its standard input ends. For each connection to the launcher's socket, it starts
// a process with the command line runnerArgv and the connection as standard input. Only the account serviceUID and root
// may connect. The group readerGID may read the runners' files in runnersDir.
func RunLauncher(ctx context.Context, runnerArgv []string, runnersDir, policyFile string, serviceUID, readerGID int,
	log *slog.Logger) error {
	if err := createSharedDir(runnersDir, 0, readerGID, runnersDirMode); err != nil {
		return err
	}
	lock, err := takeLauncherLock(runnersDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	path := filepath.Join(runnersDir, runner.LauncherSocketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the launcher, which starts the runners of jobs, cannot remove its old socket; remove this file, "+
			"then start the service again: %w", err)
	}
	syscall.Umask(0o077)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	defer l.Close()
	if err := os.Chown(path, serviceUID, -1); err != nil {
		return err
	}
	syscall.Umask(0o022)
	runner.ReportReady(runnersDir)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // this goroutine ends when the service ends, because that closes standard input
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		c, err := l.AcceptUnix()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			log.Warn("the launcher could not accept the service's connection, so it started no runner for jobs; it tries again",
				"error", err)
			time.Sleep(acceptRetryDelay)
			continue
		}
		peer, err := rundir.CheckPeerAccount(c, serviceUID)
		if err != nil {
			log.Warn("rejected a connection to the socket that starts runners of root", "uid", peer, "error", err)
			c.Close()
			continue
		}
		if hasPeerClosed(c) { // the service no longer waits: it closed the connection while this process was stopped
			c.Close()
			continue
		}
		if err := startRequestHandler(runnerArgv, runnersDir, policyFile, c); err != nil {
			fmt.Fprintln(c, runner.RefusedReplyPrefix+err.Error())
		}
		c.Close()
	}
}

// takeLauncherLock makes this process the launcher for a directory. If another launcher is running, the error contains
// the pid of that launcher. Such a launcher may be left from an earlier service, because it hung when that service
// ended.
func takeLauncherLock(runnersDir string) (*os.File, error) {
	path := filepath.Join(runnersDir, launcherLockFileName)
	lock, err := rundir.WaitForLock(func() (*os.File, bool, error) { return rundir.TryLockFile(path, 0o600) })
	if err == nil && lock == nil {
		holder := "the process that locks the file " + path + " (fuser shows it)"
		if pid, _ := os.ReadFile(path); len(pid) > 0 {
			holder = "process " + string(pid)
		}
		return nil, fmt.Errorf("%s already starts runners in %s; if its parent process is another queuectl service, use "+
			"another directory with --runner-dir; if its parent is process 1, its service has ended, so end the process too",
			holder, runnersDir)
	}
	if err == nil { // ignore errors of writing: on a full disk, the file is locked but contains no pid
		lock.Truncate(0)
		fmt.Fprint(lock, os.Getpid())
	}
	return lock, err
}

// startRequestHandler starts a process that calls HandleSpawnRequest for a connection of the service.
func startRequestHandler(runnerArgv []string, runnersDir, policyFile string, c *net.UnixConn) error {
	connFile, err := c.File()
	if err != nil {
		return err
	}
	defer connFile.Close()
	cmd := runner.NewDetachedCommand(runnerArgv, "--dir", runnersDir, "--policy", policyFile, "--accepted")
	cmd.Stdin, cmd.Stderr = connFile, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	go cmd.Wait() // this goroutine ends when the runner or this process ends
	return nil
}
