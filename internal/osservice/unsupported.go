//go:build !linux && !darwin && !windows

package osservice

import "github.com/queuectl/queuectl/config"

// FindUserService reports whether a service of this user is registered, and the command that starts it.
func FindUserService() (startCommand string, registered bool) { return "", false }

// UserServiceEndsAtLogout returns false, because no service can be registered on this system.
func UserServiceEndsAtLogout() bool { return false }

// BootAdvice returns how to make a service start at boot. On this system, services cannot be registered.
func BootAdvice(p ServiceProcess) string {
	if p.ServiceKind == config.UserService {
		return "make the init system run: queuectl serve"
	}
	return initSystemAdvice
}
