package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
)

// runnerDirectory is the runner's own directory.
type runnerDirectory struct {
	runnerName    string // unique name of this runner; also the prefix of its jobs' cookies
	dirPath       string
	groupMayRead  bool   // the Unix group of the runners' directory may read the runner's files
	workspacesDir string // path of the directory that contains the private directories of attempts
}

// fileMode returns the mode for a file or directory of the runner. ownerMode contains the permissions of the owner. If
// groupMayRead is set, the group gets the same permissions for reading and entering, but not for writing.
func (d *runnerDirectory) fileMode(ownerMode os.FileMode) os.FileMode {
	if d.groupMayRead {
		return ownerMode | ownerMode>>3&0o050
	}
	return ownerMode
}

// socketMode returns the mode of the socket. A client needs write permission to connect.
func (d *runnerDirectory) socketMode() os.FileMode {
	if d.groupMayRead {
		return 0o660
	}
	return 0o600
}

// setUpDirectory creates the runner's directory and the files in it. It takes the lock first, because a service
// considers a runner without the lock dead. It creates the socket last, because a service may connect when the socket
// exists.
func (s *server) setUpDirectory(runnerPID int) (lock *os.File, err error) {
	d := &s.dir
	info, err := os.Stat(s.RunnersDir)
	if err != nil {
		return nil, fmt.Errorf("cannot check the runner directory: %w", err)
	}
	d.groupMayRead = info.Mode()&os.ModeSetgid != 0
	if err := os.MkdirAll(filepath.Join(s.RunnersDir, rundir.OutputsDirName), d.fileMode(0o700)); err != nil {
		return nil, fmt.Errorf("cannot create the output directory: %w", err)
	}
	if err := os.Mkdir(d.dirPath, d.fileMode(0o700)); err != nil {
		return nil, fmt.Errorf("cannot create the runner's directory: %w", err)
	}
	mode := d.fileMode(0o600)
	path := filepath.Join(d.dirPath, rundir.LockFileName)
	lock, err = rundir.WaitForLock(func() (*os.File, bool, error) { return rundir.TryLockFile(path, mode) })
	if err == nil && lock == nil { // another process has held the lock for longer than a check of the lock takes
		err = fmt.Errorf("another process locks the new runner's file %s; end that process", path)
	}
	if err != nil {
		return nil, err
	}
	boot, err := process.BootID()
	if err != nil {
		return nil, fmt.Errorf("the runner cannot start: %w", err)
	}
	note := filepath.Join(d.dirPath, rundir.BootIDFileName)
	if err := os.WriteFile(note, []byte(rundir.AppendChecksum(boot)), mode); err != nil {
		return nil, fmt.Errorf("cannot write the boot ID: %w", err)
	}
	if s.JobTmpdir != "" {
		if err := rundir.StoreJobTmpdir(d.dirPath, s.JobTmpdir, mode); err != nil {
			return nil, err
		}
	}
	if d.workspacesDir, err = rundir.CreateRunnerWorkspaces(s.RunnersDir, s.JobTmpdir, d.runnerName,
		s.accounts != nil); err != nil {
		lock.Close()
		os.RemoveAll(d.dirPath) // if something remains, a service later removes it like the directory of a dead runner
		return nil, err
	}
	if s.runningTable, err = rundir.CreateRunningTable(d.dirPath, mode, runnerPID,
		process.ThisProcessStartTicks()); err != nil {
		return nil, err
	}
	if s.journal, err = rundir.OpenJournal(d.dirPath, mode, s.runningTable.SetJournalSize); err != nil {
		return nil, err
	}
	if s.socket, err = newRunnerSocket(filepath.Join(d.dirPath, rundir.SocketFileName), d.socketMode()); err != nil {
		return nil, fmt.Errorf("cannot listen on the runner's socket: %w", err)
	}
	return lock, nil
}

// removeDirAfterShutdown removes the runner's directory if the service has requested a shutdown and has
// acknowledged all results. Otherwise the directory stays, so that the next service can read the results.
func (s *server) removeDirAfterShutdown(lock *os.File) error {
	s.mu.Lock()
	keep := !s.lifetime.shutdownRequested
	for _, a := range s.attempts {
		keep = keep || a.hasEnded()
	}
	s.mu.Unlock()
	if keep {
		return s.journal.Sync()
	}
	return errors.Join(s.journal.Close(), s.runningTable.Close(), rundir.RemoveRunnerDir(s.dir.dirPath, lock))
}
