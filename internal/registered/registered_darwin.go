package registered

import (
	"os"
	"path/filepath"
)

// File is launchd's file of this user's service.
func File() string {
	return filepath.Join(os.Getenv("HOME"), "Library/LaunchAgents", Name+".plist")
}

// Own reports whether a service of this user is registered, and the command that starts it.
func Own() (start string, registered bool) {
	_, err := os.Stat(File())
	return "launchctl load " + File(), err == nil
}

// EndsAtLogout reports whether a registered service of this user ends when the user has
// logged out, and could do otherwise.
func EndsAtLogout() bool { return false }
