//go:build !windows

package main

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addServiceManagerFlag adds no flag. Only Windows starts `queuectl serve` with the flag --service.
func addServiceManagerFlag(*pflag.FlagSet, *bool) {}

// runByServiceManager calls serve directly. Only Windows has a service manager that the service must report to.
func runByServiceManager(ctx context.Context, serve func(context.Context, *serviceManager) error) error {
	return serve(ctx, nil)
}

// installerVerbs returns no commands, because only installers on Windows need such commands.
func (a *app) installerVerbs() []*cobra.Command { return nil }
