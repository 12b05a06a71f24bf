//go:build !linux && !darwin && !windows

package register

import "github.com/queuectl/queuectl/queue"

// Service is queuectl as a service of a system that it cannot be registered with.
type Service struct{ Options }

// New is an error: there is none.
func New(Options) (*Service, error) {
	return nil, queue.Errorf(queue.CodeUnsupported, "queuectl cannot be registered as a service on this operating system; start it with: queuectl serve")
}

// Registered reports whether the system knows the service.
func (s *Service) Registered() bool { return false }

// Install registers and starts the service.
func (s *Service) Install() error { return s.NotRegistered() }

// Uninstall takes the registration back.
func (s *Service) Uninstall() (was bool, err error) { return false, nil }

// Start starts the service.
func (s *Service) Start() error { return s.NotRegistered() }

// Stop stops it.
func (s *Service) Stop(bool) error { return s.NotRegistered() }

// Restart restarts it.
func (s *Service) Restart() error { return s.NotRegistered() }

// Runs reports whether the service runs.
func (s *Service) Runs() bool { return false }

// HowToStart is the command that does.
func (s *Service) HowToStart() string { return "queuectl serve" }
