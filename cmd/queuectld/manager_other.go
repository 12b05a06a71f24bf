//go:build !windows

package main

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// managedFlag adds no flag, because only Windows has a service manager that controls a process by
// calls.
func managedFlag(*pflag.FlagSet, *bool) {}

// runByServiceManager runs the service without a service manager.
func runByServiceManager(ctx context.Context, serve func(context.Context, *manager) error) error {
	return serve(ctx, nil)
}

// installersVerbs returns no commands, because only installers on Windows need such commands.
func (a *app) installersVerbs() []*cobra.Command { return nil }
