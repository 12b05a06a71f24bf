//go:build !linux

package runner

import "github.com/queuectl/queuectl/runner/process"

// accounts knows the system's users.
type accounts struct{ policyFile string }

func (a *accounts) of(uint32) (account, error) { return account{}, process.ErrUnsupported }

// ReadPolicy reads a policy.
func ReadPolicy(string) (Policy, error) { return Policy{}, process.ErrUnsupported }
