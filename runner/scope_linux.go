package runner

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/queuectl/queuectl/internal/accounts"
)

// systemdLingerDir is the directory in which systemd lists the users with lingering: their systemd managers run even
// while the users are logged out. See docs/decisions/0043.
const systemdLingerDir = "/var/lib/systemd/linger"

// systemdScopeCommandPrefixes returns command prefixes that start a runner in a scope: a group of processes that the
// user's systemd manager tracks. The scope ends with the runner, and the runner may divide the scope's control group.
// The caller tries the prefixes in order. The last prefix is for an older systemd.
//
// If the user has no systemd manager, systemdScopeCommandPrefixes returns nil. It also returns nil if the manager, and
// so the jobs, would end when the user logs out.
func systemdScopeCommandPrefixes() [][]string {
	program, err := exec.LookPath("systemd-run")
	if err != nil || !pathExists(filepath.Join(systemdUserSocketDir(), "systemd/private")) {
		return nil
	}
	account, err := new(accounts.Resolver).UserByUID(uint32(os.Getuid()))
	if err != nil || !pathExists(filepath.Join(systemdLingerDir, account.Name)) {
		return nil
	}
	args := []string{
		program, "--user", "--scope", "--quiet", "--collect", "--description", "queuectl runner",
		"-p", "Delegate=yes", "-p", "TasksMax=infinity",
	}
	return [][]string{
		// By default, systemd ends the whole scope when a job runs out of memory.
		slices.Concat(args, []string{"-p", "OOMPolicy=continue", "--"}),
		append(args, "--"), // systemd before 253 lacks OOMPolicy and continues by default
	}
}

// systemdUserSocketDir returns the directory that contains the sockets of a user's systemd manager.
func systemdUserSocketDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return dir
	}
	return "/run/user/" + strconv.Itoa(os.Getuid())
}

func pathExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
