//go:build !linux

package launcher

import (
	"context"
	"log/slog"
	"time"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/runner/process"
)

// HandleSpawnRequest returns process.ErrUnsupported: only Linux supports runners that run as root.
func HandleSpawnRequest(string, string, bool) (*AcceptedSpawnRequest, error) {
	return nil, process.ErrUnsupported
}

// RunLauncher returns process.ErrUnsupported: only Linux supports runners that run as root.
func RunLauncher(context.Context, []string, string, string, int, int, *slog.Logger) error {
	return process.ErrUnsupported
}

// policyCache is empty, because this system has no policy.
type policyCache struct{}

// AllowedAccountByUID returns process.ErrUnsupported.
func (a *AccountAuthorizer) AllowedAccountByUID(uint32) (accounts.Account, error) {
	return accounts.Account{}, process.ErrUnsupported
}

// ReadAllowedCredential returns an error: this system has no systemd, which provides credentials.
func ReadAllowedCredential(*AccountAuthorizer, map[string][]byte, string, int64) ([]byte, error) {
	return nil, process.UnusablePathError("systemd credentials are not available on this system; " +
		"use a file instead")
}

// Watchdog does nothing: only Linux has a watchdog process.
type Watchdog struct{}

// StartWatchdog returns process.ErrUnsupported.
func StartWatchdog([]string, string, bool, *slog.Logger) (*Watchdog, error) {
	return nil, process.ErrUnsupported
}

// CheckHungStarts does nothing.
func (g *Watchdog) CheckHungStarts() {}

// SetKillDeadline does nothing.
func (g *Watchdog) SetKillDeadline(time.Duration) {}

// End does nothing.
func (g *Watchdog) End() {}

// RunWatchdog returns process.ErrUnsupported.
func RunWatchdog(string) error { return process.ErrUnsupported }
