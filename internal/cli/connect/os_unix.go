//go:build unix

package connect

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/queuectl/queuectl/internal/cleanstart"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/files"
)

// startDetached starts a process that outlives this process and its terminal.
func startDetached(log *os.File, program string, args ...string) (*exec.Cmd, error) {
	cmd := exec.Command(program, args...)
	// Remove this variable. A service that inherits it would not execute itself again, and so would not call
	// cleanstart.ResetInheritedAttributes.
	os.Unsetenv("QUEUECTL_TIMERSLACK")
	cmd.Dir, cmd.Stderr, cmd.Env = "/", log, cleanstart.InheritableEnviron()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, cmd.Start()
}

// exeSuffix is the file name extension of programs.
const exeSuffix = ""

// checkTrustedProgram returns an error if the program at programPath belongs neither to root nor to the owner of this
// program, whose path is thisProgramPath.
func checkTrustedProgram(thisProgramPath, programPath string) error {
	own, err := os.Stat(thisProgramPath)
	if err != nil {
		return err
	}
	// Check the owner of a symbolic link too, because the owner of the link can change its target.
	for _, look := range []func(string) (os.FileInfo, error){os.Lstat, os.Stat} {
		info, err := look(programPath)
		if err != nil {
			return err
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 0 && uid != own.Sys().(*syscall.Stat_t).Uid {
			return fmt.Errorf("%s was not started, because uid %d owns it; it must belong to root or to the owner of %s; %s",
				programPath, uid, thisProgramPath, reinstallAdvice)
		}
	}
	return nil
}

// ExecQueuectld replaces this process with queuectld, with the same arguments. It returns only on failure.
func (f *ServiceFinder) ExecQueuectld() (exitCode int, err error) {
	path, err := f.DaemonPath()
	if err != nil {
		return 0, err
	}
	err = syscall.Exec(path, append([]string{path}, os.Args[1:]...), append(os.Environ(),
		clientVersionVariable+"="+f.Version))
	return 0, explainExecError(path, err)
}

// checkSocketPath returns an error if the path is a regular file or a directory. The socket need not exist.
func checkSocketPath(errorPrefix, path string) error {
	if info, err := os.Stat(path); err == nil && (info.Mode().IsRegular() || info.IsDir()) {
		return fault.Usagef("%s: %s is not a socket; give the path of the service's socket", errorPrefix, path)
	}
	return nil
}

// CheckedNewSocketPath returns the absolute path of a socket to be created.
func CheckedNewSocketPath(errorPrefix, path string) (string, error) {
	whole, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return whole, files.CheckIsDir(errorPrefix, filepath.Dir(whole))
}

// socketExists reports whether the socket exists. If that cannot be determined, for example because permission is
// missing, it returns true.
func socketExists(path string) bool { return files.Exists(path) }

// These texts are parts of messages about a service that ends at logout.
const (
	StartSystemServiceCommand = "systemctl start queuectl"
	ServiceEndsAtLogoutText   = "lingering is off, so your service and its jobs end when you log out, and the service " +
		"does not start at boot"
	KeepServiceRunningAdvice = "keep the service running with: loginctl enable-linger"
)
