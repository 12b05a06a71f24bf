//go:build !linux

package runner

import "errors"

// credential is what systemd has given the runner by a name; here is none.
func (s *server) credential(string, int64) ([]byte, error) {
	return nil, errors.New("this system has no credentials; use a file instead")
}
