//go:build unix

package service

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/worker"
)

// accountOf is what the system says of a uid.
func (s *Service) accountOf(uid int) worker.Account {
	u, err := s.directory.User(uint32(uid))
	if err != nil {
		return worker.Account{User: strconv.Itoa(uid), Home: "/", Shell: "/bin/sh", UID: uid}
	}
	return worker.Account{User: u.Name, Home: u.Home, Shell: u.Shell, UID: uid}
}

// accountName is the name that the system has for a uid, "" if it says nothing.
func (s *Service) accountName(uid int) string {
	a, err := s.directory.User(uint32(uid))
	if err != nil {
		return ""
	}
	return a.Name
}

// accountNamed is what the system says of a user.
func (s *Service) accountNamed(name string) (worker.Account, error) {
	u, err := s.directory.Named(name)
	if err == nil && u.Name != name { // a directory may know several, and the runners' folder has the one
		err = fmt.Errorf("this account is called %q; use that name", u.Name)
	}
	return worker.Account{User: u.Name, Home: u.Home, Shell: u.Shell, UID: int(u.UID)}, err
}

// peerNamed is a user as if it had asked over the socket, with the groups that it has now.
func (s *Service) peerNamed(name string) (control.Peer, error) {
	u, err := s.directory.Named(name)
	if err == nil {
		u, err = s.directory.Grouped(u)
	}
	p := control.Peer{UID: int(u.UID), GID: int(u.GID), PID: os.Getpid()}
	for _, gid := range u.Groups {
		p.Groups = append(p.Groups, int(gid))
	}
	return p, err
}

// rootless refuses a run_as that needs runners of root's where there are none.
func rootless(set *config.Settings, _ *worker.Account) error {
	if set.RunAs == config.RunAsService {
		return nil
	}
	if accounts.Self() == 0 { // started as root it has runners of root's: see beRoot
		if _, _, err := serviceIDs(); err != nil {
			return queue.Invalid("run_as", "%s: %v", set.RunAs, err)
		}
		return nil
	}
	return queue.Invalid("run_as", "%s needs runners that root starts; install the service (queuectl service install), start it as root, or set run_as = service", set.RunAs)
}

const lockName = "service.lock"

// InUse reports whether a service has the state folder.
func InUse(dir string) bool {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// folderLock is what has a state folder: its lock file, which says who has it, and the folder
// itself, since a file can be removed.
type folderLock struct{ file, folder *os.File }

// Close gives the folder up.
func (l *folderLock) Close() error {
	if l == nil {
		return nil
	}
	return errors.Join(l.file.Close(), l.folder.Close())
}

// lockFolder takes the state folder for this process, until it ends.
func lockFolder(dir string) (*folderLock, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state folder: %w", err)
	}
	l, err := takeLock(f, dir)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(0); err == nil {
		fmt.Fprintln(f, os.Getpid()) // for takeLock's message alone: the lock is what counts
	}
	return l, nil
}

// lockAgain is how long a lock is tried for whose service is dead: what it was about to
// start when it was killed has it until its exec, and somebody may just be looking.
const lockAgain = 2 * time.Second

// takeLock locks a state folder and its lock file, or closes that.
func takeLock(f *os.File, dir string) (*folderLock, error) {
	folder, err := os.Open(dir)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the state folder: %w", err)
	}
	l := &folderLock{f, folder}
	pid := "unknown"
	for deadline := time.Now().Add(lockAgain); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			if err = unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
				return l, nil // also where the system locks no folders
			}
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			l.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		said := make([]byte, 20)
		n, _ := f.ReadAt(said, 0)
		number, err := strconv.Atoi(strings.TrimSpace(string(said[:n])))
		if err == nil {
			pid = strconv.Itoa(number)
		}
		if err != nil || !ended(number) || time.Now().After(deadline) {
			break
		}
	}
	l.Close()
	return nil, queue.Errorf(queue.CodeWrongState, "a service with pid %s already uses %s; stop it with: queuectl --dir %s service stop", pid, dir, queue.Word(dir))
}

// ended reports whether a process has ended, or is about to: what it had open is closed late in
// its end.
func ended(pid int) bool {
	if syscall.Kill(pid, 0) == syscall.ESRCH {
		return true
	}
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:]) // its name may hold anything
	if len(fields) < 7 {
		return false
	}
	const exiting = 0x4 // PF_EXITING of include/linux/sched.h
	flags, _ := strconv.ParseUint(string(fields[6]), 10, 64)
	return flags&exiting != 0 || fields[0][0] == 'Z' || fields[0][0] == 'X'
}

// lockToLook keeps services from a state folder that is only looked at: nothing in it is
// made or written. Where none has ever been the lock is nil, which can be closed.
func lockToLook(dir string) (*folderLock, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read the state directory: %w", err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return nil, queue.Errorf(queue.CodeDenied, "the state directory %s belongs to uid %d; run doctor as that user: sudo -u '#%[2]d' queuectl --dir %[3]s doctor", dir, st.Uid, queue.Word(dir))
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock the state folder: %w", err)
	}
	return takeLock(f, dir)
}
