package main

import (
	"context"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/service"
)

// openOffline returns a client that reads the queue's files in a directory while no service runs.
func openOffline(ctx context.Context, c *cli.App, dir string) (*control.Client, error) {
	return service.Look(ctx, service.Options{Places: config.In(dir), Version: cli.Version, Log: c.Err})
}
