package registered

import (
	"os"
	"os/user"
	"path/filepath"
)

// Folder is where the units of a user stand.
func Folder() string { return filepath.Join(os.Getenv("HOME"), ".config/systemd/user") }

// Own reports whether a service of this user is registered, and the command that starts it.
func Own() (start string, registered bool) {
	return "systemctl --user start " + Name, exists(filepath.Join(Folder(), Name+".service"))
}

// EndsAtLogout reports whether a registered service of this user ends when the user has
// logged out, and does not begin with the machine.
func EndsAtLogout() bool {
	_, registered := Own()
	who, err := user.Current()
	return registered && err == nil && !exists(filepath.Join("/var/lib/systemd/linger", who.Username))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
