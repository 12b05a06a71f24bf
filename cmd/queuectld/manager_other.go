//go:build !windows

package main

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// managedFlag is the flag by which a service manager starts serve that is told by calls,
// which Windows alone has.
func managedFlag(*pflag.FlagSet, *bool) {}

// byManager runs the service for that manager.
func byManager(ctx context.Context, serve func(context.Context, *manager) error) error {
	return serve(ctx, nil)
}

// installersVerbs are those that an installer uses, below service.
func (a *app) installersVerbs() []*cobra.Command { return nil }
