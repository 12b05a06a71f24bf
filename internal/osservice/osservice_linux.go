package osservice

import (
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/accounts"
)

// UnitDir returns the directory of a user's units.
func UnitDir() string { return filepath.Join(os.Getenv("HOME"), ".config/systemd/user") }

// FindUserService reports whether a service of this user is registered, and the command that starts it.
func FindUserService() (startCommand string, registered bool) {
	return "systemctl --user start " + ServiceName, pathExists(filepath.Join(UnitDir(), ServiceName+".service"))
}

// UserServiceEndsAtLogout reports whether this user has a registered service that ends when the user logs out. Such a
// service does not start at boot either.
func UserServiceEndsAtLogout() bool {
	_, registered := FindUserService()
	return registered && !isUserLingering()
}

// isUserLingering reports whether systemd starts this user's services at boot. It also returns true if the user
// is unknown, so that callers give no advice in that case.
func isUserLingering() bool {
	who, err := new(accounts.Resolver).UserByUID(uint32(os.Getuid()))
	return err != nil || pathExists(filepath.Join("/var/lib/systemd/linger", who.Name))
}

// initPID is the pid of init, the first process. In a container, the service may be that process.
const initPID = 1

// BootAdvice returns how to make a service start at boot, or "" if it already does. A registered service
// starts at boot if its unit is enabled. A user's own service also needs lingering (loginctl enable-linger).
//
// If init is the parent of the service, or if the service is the first process of a container, BootAdvice assumes that
// the service starts with the machine or the container.
func BootAdvice(p ServiceProcess) string { return bootAdvice(p, "/run/systemd/system") }

// bootAdvice implements BootAdvice. systemdMarker is a path that exists only if systemd runs, see sd_booted(3).
func bootAdvice(p ServiceProcess, systemdMarker string) string {
	if !p.StartedOnDemand && p.SystemdUnit == "" && (p.ParentPID == initPID || os.Getpid() == initPID) {
		return ""
	}
	if !pathExists(systemdMarker) { // without systemd, no service can be registered
		if p.ServiceKind == config.UserService {
			return "make the init system run: queuectl serve"
		}
		return "make the init system start this service"
	}
	switch p.ServiceKind {
	case config.SystemService:
		if !isEnabledInTarget("/etc/systemd/system", "multi-user.target") {
			return "sudo systemctl enable " + ServiceName
		}
		return ""
	case config.UserService:
		if _, registered := FindUserService(); !registered {
			return installUserServiceCommand
		}
		if !isEnabledInTarget(UnitDir(), "default.target") {
			return "systemctl --user enable " + ServiceName
		}
		if !isUserLingering() {
			return "loginctl enable-linger"
		}
		return ""
	}
	return initSystemAdvice
}

// isEnabledInTarget reports whether a target of systemd starts the service.
func isEnabledInTarget(unitDir, target string) bool {
	return pathExists(filepath.Join(unitDir, target+".wants", ServiceName+".service"))
}

func pathExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
