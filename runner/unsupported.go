//go:build !linux

package runner

import "github.com/queuectl/queuectl/runner/process"

// ownerUID returns nil: on this system, all runners belong to the service's account.
func ownerUID(string) (*uint32, error) { return nil, nil }

// requestRunner returns process.ErrUnsupported: only Linux supports runners that run as root.
func (l Location) requestRunner(SpawnRequest) (string, error) { return "", process.ErrUnsupported }
