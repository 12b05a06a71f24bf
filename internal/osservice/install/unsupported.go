//go:build !linux && !darwin && !windows

package install

import "github.com/queuectl/queuectl/queue"

// Service represents the service on a system on which queuectl cannot be registered.
type Service struct {
	Options
	callerIsAdmin bool // always false, because this system does not use it
}

// New returns an error, because this system is not supported.
func New(Options) (*Service, error) {
	return nil, queue.Errorf(queue.CodeUnsupported,
		"queuectl cannot be registered as a service on this operating system; start it with: queuectl serve")
}

// IsRegistered reports whether the service is registered.
func (s *Service) IsRegistered() bool { return false }

// Install registers and starts the service.
func (s *Service) Install() error { return s.NotRegisteredError() }

// Uninstall removes the registration.
func (s *Service) Uninstall() (wasRegistered bool, err error) { return false, nil }

// Start starts the service.
func (s *Service) Start() error { return s.NotRegisteredError() }

// Stop stops the service.
func (s *Service) Stop(bool) error { return s.NotRegisteredError() }

// Restart restarts the service.
func (s *Service) Restart() error { return s.NotRegisteredError() }

// IsRunning reports whether the service runs.
func (s *Service) IsRunning() bool { return false }

// StartCommand returns the command that starts the service.
func (s *Service) StartCommand() string { return "queuectl serve" }
