//go:build !linux

package launcher

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

// ByUID returns process.ErrUnsupported.
func (a *Accounts) ByUID(uint32) (accounts.Account, error) {
	return accounts.Account{}, process.ErrUnsupported
}

// Refuses returns "": this system has no policy.
func (a *Accounts) Refuses(uint32) string { return "" }
