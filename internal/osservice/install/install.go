// Package install registers queuectl as a service of the operating system, and removes the registration. It
// installs the same files as the packages.
//
// Start with Service.Install, which differs by operating system.
package install

import (
	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/osservice"
	"github.com/queuectl/queuectl/queue"
)

// ServiceName is the name of the service.
const ServiceName = osservice.ServiceName

// Options select the service.
type Options struct {
	IsUserService bool         // true for the user's own service, false for the system's
	DaemonPath    string       // path of queuectld
	ClientPath    string       // path of queuectl, which the service executes as the runner
	ServicePaths  config.Paths // paths of the selected service
	DirectControl DirectControl
}

// DirectControl holds functions that talk to a service directly instead of through the service manager. Only
// Windows needs them: its service manager does not know a user's own service, and cannot stop a service in
// such a way that its jobs continue.
type DirectControl struct {
	// Start starts the user's own service in the background and waits until it answers.
	Start       func() error
	Stop        func(keepJobs bool) error // stops the service and waits until it has released its files
	IsAnswering func() bool               // reports whether the service answers requests
}

// serveArguments returns the arguments that start queuectld as the system's service. They contain all three
// paths, because the default paths of root are different.
func (o Options) serveArguments() []string {
	return []string{"serve", "--dir", o.ServicePaths.StateDir, "--socket", o.ServicePaths.SocketPath, "--config",
		o.ServicePaths.SettingsFile}
}

// NotRegisteredError returns the error for a service that is not registered.
func (o Options) NotRegisteredError() error {
	flag := ""
	if o.IsUserService {
		flag = " --user"
	}
	return queue.Errorf(queue.CodeNotFound, "no service is registered; register one with: queuectl service install%s",
		flag)
}

// checkControlAllowed returns an error if the caller may not control the service. Every user may control their own
// service. Only root, or on Windows an elevated administrator, may control the system's service.
func (s *Service) checkControlAllowed(verb string) error {
	if s.IsUserService || s.callerIsAdmin {
		return nil
	}
	return queue.Errorf(queue.CodeDenied, adminOnlyMessage, verb)
}

// controlIfAllowed calls action if the service is registered and the caller may control it.
func (s *Service) controlIfAllowed(verb string, action func() error) error {
	if !s.IsRegistered() {
		return s.NotRegisteredError()
	}
	if err := s.checkControlAllowed(verb); err != nil {
		return err
	}
	return action()
}
