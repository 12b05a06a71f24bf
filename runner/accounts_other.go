//go:build !linux

package runner

import "github.com/queuectl/queuectl/runner/process"

// Accounts knows the system's users, and what a policy says of them.
type Accounts struct {
	Policy  string
	Service int
}

func (a *Accounts) of(uint32) (account, error) { return account{}, process.ErrUnsupported }

// Refuses says why no job of a uid is run.
func (a *Accounts) Refuses(uint32) string { return "" }
