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
	return service.OpenOffline(ctx, service.Options{Places: config.PlacesIn(dir), Version: cli.Version, Log: c.Stderr})
}
