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

// chownToServer gives a directory to the account of the server.
func chownToServer(dir string) error {
	if os.Getuid() != 0 {
		return nil
	}
	return os.Chown(dir, serverUID, serverUID)
}

// runAsServer makes a command run as the account of the server.
func runAsServer(cmd *exec.Cmd) {
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: serverUID, Gid: serverUID}}
	}
}

// quitServer makes the server end immediately.
func quitServer(cmd *exec.Cmd) { cmd.Process.Signal(syscall.SIGQUIT) }

// stopOrContinue stops the server's processes and their children, or lets them continue if stopped is false.
func stopOrContinue(cmd *exec.Cmd, stopped bool) {
	sig := syscall.SIGCONT
	if stopped {
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
