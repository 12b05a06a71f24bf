package service

import (
	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/store"
)

// enforcement says what holds a job within its bounds here.
const enforcement = "the runner enforces timeouts and output limits; job objects, which no process can leave, limit process trees, memory, processors and the number of processes"

// enforcementInGroups is the same: job objects are always there.
const enforcementInGroups = enforcement

// heedLimits refuses limits under which a service would fail; Windows has none.
func heedLimits() error { return nil }

// connections are how many connections there may be at once, and how many of one user.
func connections(c *config.Config) (all, user int) { return c.MaxConnections, c.MaxConnectionsUser }

// examineLimits looks whether descriptors suffice for what the settings allow; Windows
// bounds them by memory alone.
func examineLimits(*config.Config) []store.Finding { return nil }
