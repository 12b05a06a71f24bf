//go:build !linux

package runner

import "github.com/queuectl/queuectl/runner/process"

// credential returns an error: only systemd gives a runner credentials.
func (s *server) credential(string, int64) ([]byte, error) {
	return nil, process.UnusableError("systemd credentials are not available on this system; use a file instead")
}
