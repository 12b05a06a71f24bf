package osservice

import (
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/config"
)

// PlistPath returns the path of launchd's file for this user's service.
func PlistPath() string {
	return filepath.Join(os.Getenv("HOME"), "Library/LaunchAgents", ServiceName+".plist")
}

// FindUserService reports whether a service of this user is registered, and the command that starts it.
func FindUserService() (startCommand string, registered bool) {
	_, err := os.Stat(PlistPath())
	return "launchctl load " + PlistPath(), err == nil
}

// UserServiceEndsAtLogout always returns false. launchd does end a user's service at logout, but callers would then
// advise the user to prevent that, which is not possible.
func UserServiceEndsAtLogout() bool { return false }

// BootAdvice returns how to make a service start at boot, or "" if the service already does. launchd
// starts the machine's service at boot, but a user's own service only at login.
func BootAdvice(p ServiceProcess) string {
	switch p.ServiceKind {
	case config.SystemService:
		if _, err := os.Stat("/Library/LaunchDaemons/" + ServiceName + ".plist"); err == nil {
			return ""
		}
		return "sudo queuectl service install"
	case config.UserService:
		if _, registered := FindUserService(); !registered {
			return installUserServiceCommand + " (starts at login), or for all users: sudo queuectl service install"
		}
		return "your own service starts only when you log in; for a service of all users that starts at boot, run: " +
			"sudo queuectl service install"
	}
	return initSystemAdvice
}
