//go:build linux || darwin

package install

import (
	kardianos "github.com/kardianos/service"

	"github.com/queuectl/queuectl/queue"
)

// Start starts the service.
func (s *Service) Start() error { return s.act("start", s.unit.Start) }

// Stop stops the service and its jobs. The jobs finish first or return to the queue. With systemd, the
// next client that connects to the socket starts the service again.
func (s *Service) Stop(keepJobs bool) error {
	if keepJobs {
		return queue.Errorf(queue.CodeInvalid, "--keep-jobs: cannot be used with a registered service, because the system "+
			"would start it again immediately; use: queuectl service restart")
	}
	return s.act("stop", s.unit.Stop)
}

// Restart restarts the service. Jobs continue to run.
func (s *Service) Restart() error { return s.act("restart", s.unit.Restart) }

func (s *Service) act(verb string, do func() error) error {
	return s.Options.runIfAllowed(verb, s.uid == 0, s.IsRegistered(), do)
}

// IsRunning reports whether the service runs or is starting.
func (s *Service) IsRunning() bool {
	status, err := s.unit.Status()
	return err == nil && status == kardianos.StatusRunning
}
