//go:build linux || darwin

package install

import "github.com/queuectl/queuectl/queue"

// Start starts the service.
func (s *Service) Start() error { return s.controlUnit("start") }

// Stop stops the service. Its jobs finish or return to the queue. With systemd, the next client that connects
// to the socket starts the service again.
func (s *Service) Stop(keepJobs bool) error {
	if keepJobs {
		return queue.Errorf(queue.CodeInvalid, "--keep-jobs: cannot be used with a registered service, because the system "+
			"would start it again immediately; use: queuectl service restart")
	}
	return s.controlUnit("stop")
}

// Restart restarts the service. Jobs continue to run.
func (s *Service) Restart() error { return s.controlUnit("restart") }

// controlUnit executes a verb of systemctl, such as restart, for the service. It returns an error if the service is not
// registered or the caller may not control it.
func (s *Service) controlUnit(verb string) error {
	return s.controlIfAllowed(verb, func() error { return s.controlService(verb) })
}
