// Package osservice reports whether the user has a service that is registered with the operating system. If no service
// answers, the client uses this to say how to start one.
//
// Package install registers services. The two packages are separate, so that the client, which must start
// fast, does not link the code of install.
package osservice

import "github.com/queuectl/queuectl/config"

// ServiceName is the name of the service.
const ServiceName = "queuectl"

// ServiceProcess describes a running service. BootAdvice derives its advice from it.
type ServiceProcess struct {
	ServiceKind     config.ServiceKind
	StartedOnDemand bool   // a client started the service on demand
	SystemdUnit     string // systemd unit of the service, from its environment; "" if none
	ParentPID       int    // pid of the service's parent process
}

// installUserServiceCommand is the command that registers a user's own service.
const installUserServiceCommand = "queuectl service install --user"

// initSystemAdvice is the advice about starting at boot for a service with the flag --dir. For such a service, the user
// must configure the init system of the machine.
const initSystemAdvice = "make the init system start this service; or, to have a user service that starts at " +
	"boot: " + installUserServiceCommand
