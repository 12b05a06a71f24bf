//go:build !linux

package runner

import "github.com/queuectl/queuectl/runner/process"

// switchedAccountUID returns nil: on this system, all runners belong to the service's account.
func switchedAccountUID(string) (*uint32, error) { return nil, nil }

// sendSpawnRequest returns process.ErrUnsupported: only Linux supports runners that run as root.
func (l RunnersLocation) sendSpawnRequest(SpawnRequest) (string, error) {
	return "", process.ErrUnsupported
}
