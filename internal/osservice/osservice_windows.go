package osservice

import (
	"golang.org/x/sys/windows/registry"

	"github.com/queuectl/queuectl/config"
)

// LogonRunKey is the registry key of the commands that Windows runs when this user logs on. Each command has
// a name.
const LogonRunKey = `Software\Microsoft\Windows\CurrentVersion\Run`

// UserServiceCommand returns the command that starts the user's own service at logon.
func UserServiceCommand() (commandLine string, err error) {
	k, err := registry.OpenKey(registry.CURRENT_USER, LogonRunKey, registry.QUERY_VALUE)
	if err != nil {
		return "", err
	}
	defer k.Close()
	commandLine, _, err = k.GetStringValue(ServiceName)
	return commandLine, err
}

// FindUserService reports whether a service of this user is registered, and the command that starts it.
func FindUserService() (startCommand string, registered bool) {
	line, err := UserServiceCommand()
	return "queuectl service start --user", err == nil && line != ""
}

// UserServiceEndsAtLogout reports whether this user has a registered service. On Windows, such a service always ends
// when the user logs out.
func UserServiceEndsAtLogout() bool {
	_, registered := FindUserService()
	return registered
}

// BootAdvice returns how to make a service start at boot, or "" if the service already does. Windows
// starts the system's service at boot, but a user's own service only at logon.
func BootAdvice(p ServiceProcess) string {
	switch p.ServiceKind {
	case config.SystemService:
		return ""
	case config.UserService:
		if _, registered := FindUserService(); !registered {
			return installUserServiceCommand +
				" (starts at logon), or for all users, as an administrator: queuectl service install"
		}
		return "your own service starts only when you log on; for a service of all users that starts at boot, run as an " +
			"administrator: queuectl service install"
	}
	return initSystemAdvice
}
