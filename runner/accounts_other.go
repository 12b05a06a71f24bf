//go:build !linux

package runner

import (
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/runner/process"
)

// Accounts knows what a policy says of the system's users.
type Accounts struct {
	Policy    string
	Service   int
	Directory *accounts.Directory
}

func (a *Accounts) of(uint32) (accounts.Account, error) {
	return accounts.Account{}, process.ErrUnsupported
}

// Refuses says why no job of a uid is run.
func (a *Accounts) Refuses(uint32) string { return "" }

// accountOf is the account of a runner's folder; here all are the service's.
func accountOf(string) (*uint32, error) { return nil, nil }
