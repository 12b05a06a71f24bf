package service

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// stateDirLockName is the name of the lock file in the state directory. The file contains the pid of the service.
const stateDirLockName = "service.lock"

// lockRetryTimeout is how long acquireStateDirLock retries if the service that held the lock has ended. The lock may
// outlast that service for a moment. A child process that the service has just forked holds the lock until its exec,
// and Windows closes the files of a process some time after its end. A program that only reads the queue's files also
// holds the lock for a moment.
const lockRetryTimeout = 2 * time.Second

// stateDirLock is a held lock of a state directory. It consists of open files; the first is the lock file.
type stateDirLock []*os.File

// Close releases the lock.
func (l stateDirLock) Close() (err error) {
	for _, f := range l {
		err = errors.Join(err, f.Close())
	}
	return err
}

// lockStateDir locks the state directory and writes the pid into the lock file. The lock lasts until the caller
// closes it or the process ends.
func lockStateDir(dir string) (stateDirLock, error) {
	l, err := acquireStateDirLock(dir, true)
	if err == nil && l[0].Truncate(0) == nil {
		fmt.Fprintln(l[0], os.Getpid()) // acquireStateDirLock names this pid in its error message
	}
	return l, err
}

// acquireStateDirLock takes the lock of a state directory. If createLockFile is set, it creates a missing lock file.
func acquireStateDirLock(dir string, createLockFile bool) (stateDirLock, error) {
	for deadline := time.Now().Add(lockRetryTimeout); ; time.Sleep(5 * time.Millisecond) {
		l, err := tryLockStateDir(dir, createLockFile)
		if err != nil {
			return nil, fmt.Errorf("cannot lock the state directory: %w", err)
		}
		if l != nil {
			return l, nil
		}
		content, _ := os.ReadFile(filepath.Join(dir, stateDirLockName))
		pid := strings.TrimSpace(string(content))
		if number, err := strconv.Atoi(pid); err != nil || !hasProcessEnded(number) || time.Now().After(deadline) {
			return nil, queue.Errorf(queue.CodeWrongState,
				"a service with pid %s already uses %s; stop it with: queuectl --dir %s service stop", cmp.Or(pid, "unknown"),
				dir, queue.QuoteShellWord(dir))
		}
	}
}

// lockStateDirForReading locks a state directory without writing to it, so that no service starts while a program reads
// it. If no service has ever used the directory, the returned lock is nil. Closing a nil lock is harmless.
func lockStateDirForReading(dir string) (stateDirLock, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read the state directory: %w", err)
	}
	if err := checkDirOwner(dir, info); err != nil {
		return nil, err
	}
	l, err := acquireStateDirLock(dir, false)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return l, err
}
