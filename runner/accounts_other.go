//go:build !linux

package runner

import (
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/runner/process"
)

// Accounts applies the runner's policy to the system's accounts. Only Linux supports it.
type Accounts struct {
	Policy    string
	Service   int
	Directory *accounts.Directory
}

func (a *Accounts) byUID(uint32) (accounts.Account, error) {
	return accounts.Account{}, process.ErrUnsupported
}

// Refuses returns "": this system has no policy.
func (a *Accounts) Refuses(uint32) string { return "" }

// accountOf returns nil: on this system, all runners belong to the service's account.
func accountOf(string) (*uint32, error) { return nil, nil }
