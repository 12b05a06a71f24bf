//go:build !linux

package launcher

import (
	"context"
	"log/slog"
	"time"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/runner/process"
)

// Accept returns process.ErrUnsupported, because only Linux has runners of root.
func Accept(string, string, bool) (*Grant, error) { return nil, process.ErrUnsupported }

// Launch returns process.ErrUnsupported, because only Linux has runners of root.
func Launch(context.Context, []string, string, string, int, int, *slog.Logger) error {
	return process.ErrUnsupported
}

// ReplyReady does nothing.
func (g *Grant) ReplyReady(string) {}

// ReplyError does nothing.
func (g *Grant) ReplyError(error) {}

// policyCache is empty, because this system has no policy.
type policyCache struct{}

// ByUID returns process.ErrUnsupported.
func (a *Accounts) ByUID(uint32) (accounts.Account, error) {
	return accounts.Account{}, process.ErrUnsupported
}

// RefusalReason returns "": this system has no policy.
func (a *Accounts) RefusalReason(uint32) string { return "" }

// AllowedCredential returns an error: only systemd gives a runner credentials.
func AllowedCredential(*Accounts, map[string][]byte, string, int64) ([]byte, error) {
	return nil, process.UnusableError("systemd credentials are not available on this system; " +
		"use a file instead")
}

// Watchdog would end hanging children of a runner of root, and the jobs of a dead runner. Only Linux has a
// watchdog.
type Watchdog struct{}

// StartWatchdog returns process.ErrUnsupported.
func StartWatchdog([]string, string, bool, *slog.Logger) (*Watchdog, error) {
	return nil, process.ErrUnsupported
}

// CheckStarts does nothing.
func (g *Watchdog) CheckStarts() {}

// SetDeadline does nothing.
func (g *Watchdog) SetDeadline(time.Duration) {}

// End does nothing.
func (g *Watchdog) End() {}

// RunWatchdog returns process.ErrUnsupported.
func RunWatchdog(string) error { return process.ErrUnsupported }
