package registered

import "github.com/queuectl/queuectl/config"

// Process describes a running service, as far as it decides who starts the service.
type Process struct {
	Kind       config.Kind
	Background bool   // a client started it on demand
	Unit       string // the systemd unit that it was told, "" for none
	Parent     int    // the process that started it
}

// registerOwn registers a user's own service, with the system's manager of services.
const registerOwn = "queuectl service install --user"

// elsewhere is the advice for a service in a directory of its own, which only the machine's init system can start.
const elsewhere = "have the init system start it, or use the service of: " + registerOwn
