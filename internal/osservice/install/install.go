// Package install registers queuectl as a service of the operating system, with the same files as
// the packages, and removes the registration.
//
// Start with Service.Install, which differs by operating system.
package install

import (
	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/osservice"
	"github.com/queuectl/queuectl/queue"
)

// Name is the name of the service.
const Name = osservice.Name

// Options select the service.
type Options struct {
	User    bool          // true for the user's own service, false for the system's
	Program string        // path of queuectld
	Client  string        // path of queuectl, which the service executes as the runner
	Places  config.Places // paths of the selected service
	Talk    Direct
}

// Direct holds functions that talk to a service directly, not through the service manager. They control
// a user's own service, which the Windows service manager does not know, and stop a service without its
// jobs. Only the registration on Windows uses them.
type Direct struct {
	// Begin starts the user's own service in the background and waits until it answers.
	Begin   func() error
	End     func(keepJobs bool) error // stops the service and waits until it has released its directory
	Answers func() bool
}

// serve returns the arguments that start the program as the system's service. They contain all three
// paths, because a service of root without these flags would use other paths.
func (o Options) serve() []string {
	return []string{"serve", "--dir", o.Places.State, "--socket", o.Places.Socket, "--config", o.Places.File}
}

// NotRegistered returns the error for a service that is not registered.
func (o Options) NotRegistered() error {
	flag := ""
	if o.User {
		flag = " --user"
	}
	return queue.Errorf(queue.CodeNotFound, "no service is registered; register one with: queuectl service install%s",
		flag)
}

// allowed returns an error if the caller may not control the service. The caller may do so if it is
// root (on Windows, an elevated administrator) or the service is the user's own.
func (o Options) allowed(verb string, root bool) error {
	if o.User || root {
		return nil
	}
	return queue.Errorf(queue.CodeDenied, rootsAlone, verb)
}

// act calls the function in the parameter do if the service is registered and the caller may
// control it.
func (o Options) act(verb string, root, registered bool, do func() error) error {
	if !registered {
		return o.NotRegistered()
	}
	if err := o.allowed(verb, root); err != nil {
		return err
	}
	return do()
}
