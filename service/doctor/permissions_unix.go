//go:build unix

package doctor

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/store"
)

// ExaminePathPermissions reports access of other accounts to the socket, the output files and the state directory, if
// they should not have it. socketMode is the mode that the control socket may have.
func ExaminePathPermissions(p config.Paths, socketMode fs.FileMode) []store.Finding {
	var findings []store.Finding
	for _, c := range []struct {
		path string
		mode fs.FileMode
	}{{p.SocketPath, socketMode}, {cluster.RunnersDir(p), 0o700},
		{filepath.Dir(runner.OutputPath(cluster.RunnersDir(p), "1")), 0o700}} {
		info, err := os.Lstat(c.path)
		if err == nil && info.Mode().Perm()&0o077&^c.mode != 0 {
			findings = append(findings, Failure("permissions",
				fmt.Sprintf("%s can be accessed by other users (mode %03o)", c.path, info.Mode().Perm()),
				fmt.Sprintf("run: chmod %03o %s", c.mode, queue.QuoteShellWord(c.path))))
		}
	}
	return append(findings, examineStateDirPermissions(p)...)
}

// examineStateDirPermissions warns if other accounts can list the state directory, and suggests a stricter mode. If the
// directory contains a socket that other accounts may use, these accounts can still reach the socket with the suggested
// mode. examineStateDirPermissions ignores a directory that does not belong to the service's account.
func examineStateDirPermissions(p config.Paths) []store.Finding {
	info, err := os.Stat(p.StateDir)
	if err != nil || info.Mode().Perm()&0o044 == 0 || int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return nil
	}
	mode := fs.FileMode(0o700)
	if socket, err := os.Lstat(p.SocketPath); err == nil && filepath.Dir(p.SocketPath) == p.StateDir &&
		socket.Mode().Perm()&0o066 != 0 {
		mode |= info.Mode().Perm() & 0o011
	}
	return []store.Finding{Warning("permissions",
		fmt.Sprintf("other users can list %s (mode %03o)", p.StateDir, info.Mode().Perm()),
		fmt.Sprintf("run: chmod %03o %s", mode, queue.QuoteShellWord(p.StateDir)))}
}
