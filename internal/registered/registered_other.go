//go:build !linux && !darwin && !windows

package registered

import "github.com/queuectl/queuectl/config"

// Own reports whether a service of this user is registered, and the command that starts it.
func Own() (start string, registered bool) { return "", false }

// EndsAtLogout reports whether a registered service of this user ends when the user has
// logged out, and could do otherwise.
func EndsAtLogout() bool { return false }

// BootAdvice returns how to make a service start at boot. No service is registered here.
func BootAdvice(p Process) string {
	if p.Kind == config.OwnService {
		return "make the init system run: queuectl serve"
	}
	return elsewhere
}
