//go:build !linux && !darwin && !windows

package install

import "github.com/queuectl/queuectl/queue"

// Service represents the service on a system on which queuectl cannot be registered.
type Service struct{ Options }

// New returns an error, because this system is not supported.
func New(Options) (*Service, error) {
	return nil, queue.Errorf(queue.CodeUnsupported,
		"queuectl cannot be registered as a service on this operating system; start it with: queuectl serve")
}

// Registered reports whether the service is registered.
func (s *Service) Registered() bool { return false }

// Install registers and starts the service.
func (s *Service) Install() error { return s.NotRegistered() }

// Uninstall removes the registration.
func (s *Service) Uninstall() (was bool, err error) { return false, nil }

// Start starts the service.
func (s *Service) Start() error { return s.NotRegistered() }

// Stop stops the service.
func (s *Service) Stop(bool) error { return s.NotRegistered() }

// Restart restarts the service.
func (s *Service) Restart() error { return s.NotRegistered() }

// Runs reports whether the service runs.
func (s *Service) Runs() bool { return false }

// HowToStart returns the command that starts the service.
func (s *Service) HowToStart() string { return "queuectl serve" }
