//go:build unix

package pgserver

import (
	"os"
	"os/exec"
	"syscall"
)

// nobody is the account of a server that root's tests start: PostgreSQL refuses root.
const nobody = 65534

func giveToServer(dir string) error {
	if os.Getuid() != 0 {
		return nil
	}
	return os.Chown(dir, nobody, nobody)
}

func asServer(cmd *exec.Cmd) {
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
}

func quitServer(cmd *exec.Cmd) { cmd.Process.Signal(syscall.SIGQUIT) }
