//go:build !linux

package launcher

import "github.com/queuectl/queuectl/runner/process"

// Credential returns an error: only systemd gives a runner credentials.
func Credential(*Accounts, map[string][]byte, string, int64) ([]byte, error) {
	return nil, process.UnusableError("systemd credentials are not available on this system; " +
		"use a file instead")
}
