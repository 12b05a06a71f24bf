//go:build unix

package service

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/runner"
)

// serviceGroupName is the group of the service's process. Users that may submit jobs belong to a different group, so
// they cannot read the service's files.
const serviceGroupName = "queuectl-service"

// bootstrapRoot does the steps that need root, if the service was started as root without systemd. It opens
// the control socket and starts the launcher: the process that starts runners as root. Then it permanently
// switches this process to the service's account.
func (st *startup) bootstrapRoot() error {
	uid, gid, err := serviceUIDAndGID()
	if err != nil {
		return err
	}
	state, r := st.Paths.StateDir, &st.options.ExternalRunners
	err = os.Mkdir(state, 0o700)
	if err == nil {
		err = os.Chown(state, uid, gid)
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot create the state directory: %w; choose another one with --dir", err)
	}
	if filepath.Dir(st.Paths.SocketPath) != state {
		if st.socketOpenedAsRoot, err = openSocketForGroup(st.Paths.SocketPath); err != nil {
			return err
		}
	}
	if st.launcher, err = runner.StartLauncher(st.options.RunnerCommand, r.RunnersDir, r.PolicyFile, uid, gid,
		st.options.LogFile); err != nil {
		return err
	}
	r.SpawnSocketPath = st.launcher.SocketPath
	return dropPrivileges(uid, gid)
}

// serviceUIDAndGID returns the uid of the service's account and the gid of serviceGroupName. It does not return the
// account's primary group: users join that group to submit jobs, and they could then read the runners' files
// about the jobs of all users.
func serviceUIDAndGID() (uid, gid int, err error) {
	var directory accounts.Resolver
	u, err := directory.UserByName(socket.ServiceAccountName)
	own, ok := directory.GroupIDByName(serviceGroupName)
	if err != nil || !ok {
		return 0, 0, fmt.Errorf("a service started as root runs as the account %[1]s with the group %[2]s, and at least "+
			"one of them does not exist; create them: groupadd --system %[1]s; groupadd --system %[2]s; useradd "+
			"--system --gid %[1]s %[1]s", socket.ServiceAccountName, serviceGroupName)
	}
	return int(u.UID), int(own), nil
}

// openSocketForGroup opens the control socket at a path. Only root and members of the group whose users may submit jobs
// can connect.
func openSocketForGroup(path string) (*socket.Listener, error) {
	gid := -1
	if g, ok := new(accounts.Resolver).GroupIDByName(socket.ServiceAccountName); ok {
		gid = int(g)
	}
	dir := filepath.Dir(path)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		// Chmod sets the mode, no matter which umask applies.
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
			return nil, fmt.Errorf("cannot create the directory of the service's socket; choose another path with "+
				"--socket, or check the parent directory: %w", err)
		}
	}
	l, err := socket.BindUnixListener(path, socket.Perms{Mode: 0o660, GID: gid})
	if err != nil {
		return nil, err
	}
	return socket.WrapInheritedListener(l), nil
}

// dropPrivileges permanently switches this process to an account without privileges.
func dropPrivileges(uid, gid int) error {
	err := syscall.Setgroups([]int{gid})
	if err == nil {
		err = syscall.Setregid(gid, gid)
	}
	if err == nil {
		err = syscall.Setreuid(uid, uid)
	}
	if err != nil {
		return fmt.Errorf("cannot switch from root to the account of the service (uid %d): %w; in a container, allow the "+
			"capabilities SETUID and SETGID", uid, err)
	}
	if syscall.Setreuid(0, 0) == nil {
		return errors.New("the service was not started, because it could regain root rights after switching to its own " +
			"account; start it without securebits that keep capabilities (SecureBits=)")
	}
	return setNoNewPrivs()
}
