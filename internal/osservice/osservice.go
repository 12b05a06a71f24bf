// Package osservice reports whether this user has a service that is registered with the operating system. The
// client needs that when no service answers. Package install registers services. It is separate, so that the
// client does not link it and starts fast.
package osservice

import "github.com/queuectl/queuectl/config"

// Name is the name of the service.
const Name = "queuectl"

// Process holds the facts about a running service from which BootAdvice derives its advice.
type Process struct {
	Kind       config.ServiceKind
	Background bool   // a client started it on demand
	Unit       string // systemd unit in the service's environment; "" if the environment names none
	ParentPID  int    // pid of the process that started it
}

// installUserCommand is the command that registers a user's own service.
const installUserCommand = "queuectl service install --user"

// initSystemAdvice is the advice for a service in a directory given with --dir. Only the machine's init
// system can start such a service at boot.
const initSystemAdvice = "make the init system start this service; or, to have a user service that starts at " +
	"boot: " + installUserCommand
