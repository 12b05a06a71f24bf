//go:build !linux

package runner

import "github.com/queuectl/queuectl/runner/process"

// requestRunner returns process.ErrUnsupported, because only Linux has runners of root.
func (h Location) requestRunner(SpawnRequest) (string, error) { return "", process.ErrUnsupported }
