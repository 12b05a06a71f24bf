//go:build !linux && !darwin && !windows

package osservice

import "github.com/queuectl/queuectl/config"

// FindUserService reports whether a service of this user is registered, and the command that starts it.
func FindUserService() (start string, registered bool) { return "", false }

// EndsAtLogout reports whether a registered service of this user ends when the user logs out,
// although it could keep running.
func EndsAtLogout() bool { return false }

// BootAdvice returns how to make a service start at boot. No service can be registered here.
func BootAdvice(p Process) string {
	if p.Kind == config.UserService {
		return "make the init system run: queuectl serve"
	}
	return initSystemAdvice
}
