//go:build !linux

package runner

import "github.com/queuectl/queuectl/runner/process"

// credential returns an error: only systemd gives a runner credentials.
func (s *server) credential(string, int64) ([]byte, error) {
	return nil, process.Unusable("this system has no systemd credentials; use a file instead")
}
