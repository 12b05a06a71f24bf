//go:build unix

package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
)

// ServiceLogHint says where the user finds the log of the system service.
const ServiceLogHint = "journalctl -u queuectl"

// AccessDeniedError returns the error for a user without permission to connect to a socket. It explains which
// permission is missing and how to get access.
func AccessDeniedError(path string) error {
	// closed is the path that the user may not use: the socket or a directory above it. need is the permission that the
	// user's group would need for this path.
	closed, need := path, fs.FileMode(0o020)
	info, err := os.Stat(path)
	// If a directory on the path is closed to the user, find the outermost one.
	for errors.Is(err, fs.ErrPermission) && closed != filepath.Dir(closed) {
		closed, need = filepath.Dir(closed), 0o010
		info, err = os.Stat(closed)
	}
	var accountNames accounts.Resolver
	you := accountNames.UserName(os.Geteuid())
	var fileStat *syscall.Stat_t
	if err == nil {
		fileStat, _ = info.Sys().(*syscall.Stat_t)
	}
	text, use, admit := fmt.Sprintf("%s cannot use the socket %s", you, path), "use", "change"
	if closed != path {
		text += fmt.Sprintf(", because this account has no access to the directory %s", closed)
		use, admit = "enter", "put the socket of the service into another directory (serve --socket), and change"
	}
	if fileStat == nil {
		return queue.Errorf(queue.CodeDenied, "%s", text)
	}
	group := accountNames.GroupName(int(fileStat.Gid))
	if info.Mode().Perm()&need == 0 || fileStat.Gid == 0 {
		return queue.Errorf(queue.CodeDenied, "%s: only the user %s may %s it; to admit other users, %s the settings "+
			"socket_group, socket_mode and [access] of the service", text, accountNames.UserName(int(fileStat.Uid)), use, admit)
	}
	next := fmt.Sprintf("join the group with: sudo usermod -aG %s %s, then log in again", group, you)
	if me, err := accountNames.UserByUID(uint32(os.Geteuid())); err == nil {
		if me, err = accountNames.WithGroups(me); err == nil && slices.Contains(me.Groups, fileStat.Gid) {
			next = "you were added to the group after you logged in, so log in again"
		}
	}
	return queue.Errorf(queue.CodeDenied, "%s: only members of the group %s may %s it; %s", text, group, use, next)
}
