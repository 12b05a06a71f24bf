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

// nobody is the account of a server that tests of root start, because PostgreSQL refuses to run as root.
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

// freeze stops the server's processes and their children, or lets them continue.
func freeze(cmd *exec.Cmd, stand bool) {
	sig := syscall.SIGCONT
	if stand {
		sig = syscall.SIGSTOP
	}
	pids := []int{cmd.Process.Pid}
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
	for _, name := range lists {
		raw, _ := os.ReadFile(name)
		for word := range strings.FieldsSeq(string(raw)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	for _, pid := range pids {
		syscall.Kill(pid, sig)
	}
}
