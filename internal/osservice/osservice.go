// Package osservice reports whether this user has a service that is registered with the operating system. The
// client needs that when no service answers.
//
// Package install registers services. The two packages are separate, so that the client, which must start
// fast, does not link the code of install.
package osservice

import "github.com/queuectl/queuectl/config"

// ServiceName is the name of the service.
const ServiceName = "queuectl"

// ServiceProcess holds the facts about a running service from which BootAdvice derives its advice.
type ServiceProcess struct {
	ServiceKind     config.ServiceKind
	StartedOnDemand bool   // a client started it on demand
	SystemdUnit     string // systemd unit that the service's environment names; "" if none
	ParentPID       int    // pid of the process that started it
}

// installUserCommand is the command that registers a user's own service.
const installUserCommand = "queuectl service install --user"

// initSystemAdvice is the advice for a service in a directory given with --dir. To start such a service at
// boot, the user must configure the machine's init system.
const initSystemAdvice = "make the init system start this service; or, to have a user service that starts at " +
	"boot: " + installUserCommand
