//go:build unix

package pgserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// serverUID is the account that runs the server if the test runs as root. PostgreSQL refuses to run as root.
const serverUID = 65534

// chownToServerAccount gives a directory to the account of the server.
func chownToServerAccount(dir string) error {
	if os.Getuid() != 0 {
		return nil
	}
	return os.Chown(dir, serverUID, serverUID)
}

// runAsServerAccount makes a command run as the account of the server.
func runAsServerAccount(cmd *exec.Cmd) {
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: serverUID, Gid: serverUID}}
	}
}

// quitServerImmediately makes the server end immediately.
func quitServerImmediately(cmd *exec.Cmd) { cmd.Process.Signal(syscall.SIGQUIT) }

// setServerFrozen stops the server's processes and their children, or lets them continue if frozen is false.
func setServerFrozen(cmd *exec.Cmd, frozen bool) {
	sig := syscall.SIGCONT
	if frozen {
		sig = syscall.SIGSTOP
	}
	pids := []int{cmd.Process.Pid}
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
	for _, name := range lists {
		raw, _ := os.ReadFile(name)
		for field := range strings.FieldsSeq(string(raw)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	for _, pid := range pids {
		syscall.Kill(pid, sig)
	}
}
