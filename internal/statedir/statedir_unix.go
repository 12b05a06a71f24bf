//go:build unix

package statedir

import (
	"fmt"
	"os"
	"syscall"

	"github.com/queuectl/queuectl/internal/accounts"
)

// makePrivateDir creates a directory, and its missing parents, with mode 0700 regardless of the umask.
func makePrivateDir(dir string) error {
	defer syscall.Umask(syscall.Umask(0o077))
	return os.MkdirAll(dir, 0o700)
}

// CheckUnwritableByOthers returns an error if other accounts can change an existing state directory. These accounts
// could have put malicious files into the directory.
func CheckUnwritableByOthers(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("cannot check the state directory: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("the state directory %s is not a directory; choose another one with --dir", dir)
	case ok && st.Uid == 0 && os.Geteuid() != 0:
		return fmt.Errorf("the state directory %s belongs to root, but the service does not run as root; run queuectl as "+
			"root or choose another directory with --dir; if the directory is empty, you can also run: sudo chown %d:%d %[1]s",
			dir, os.Geteuid(), os.Getegid())
	case ok && int(st.Uid) != os.Geteuid(): // the other user may have prepared the directory for an attack
		return fmt.Errorf("the state directory %s belongs to %s, who can change its content; choose another one with "+
			"--dir, or run queuectl as that user", dir, new(accounts.Resolver).UserName(int(st.Uid)))
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("the state directory %s can be changed by other users (mode %03o); run: chmod go-w %s", dir,
			info.Mode().Perm(), dir)
	}
	return nil
}
