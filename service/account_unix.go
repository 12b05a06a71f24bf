//go:build unix

package service

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// account is whom jobs run as.
type account struct{ User, Home, Shell string }

// ownAccount is the account of the service itself.
func ownAccount() account {
	a := account{User: strconv.Itoa(os.Geteuid()), Home: "/", Shell: "/bin/sh"}
	if u, err := user.LookupId(a.User); err == nil {
		a.User, a.Home = u.Username, u.HomeDir
	}
	raw, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return a // kept elsewhere: /bin/sh is everywhere
	}
	for line := range strings.Lines(string(raw)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) == 7 && f[0] == a.User && f[6] != "" {
			a.Shell = f[6]
		}
	}
	return a
}

// lockFolder takes the state folder for this process, until it ends.
func lockFolder(dir string) (*os.File, error) {
	path := filepath.Join(dir, "service.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		pid := make([]byte, 20)
		n, _ := f.Read(pid)
		return nil, fmt.Errorf("a service with pid %s already uses %s; stop it with: queuectl --dir %s service stop", strings.TrimSpace(string(pid[:n])), dir, dir)
	}
	if err := f.Truncate(0); err == nil {
		fmt.Fprintln(f, os.Getpid()) // for the message above alone: the lock is what counts
	}
	return f, nil
}
