package doctor

import (
	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/store"
)

// limitEnforcementText describes how jobs are limited.
const limitEnforcementText = "the runner enforces timeouts and output limits; job objects, which no process can " +
	"leave, contain the process trees of jobs and limit memory, processors and the number of processes"

// cgroupLimitEnforcementText equals limitEnforcementText, because Windows has no control groups.
const cgroupLimitEnforcementText = limitEnforcementText

// CheckOpenFileLimit returns nil, since Windows does not limit the number of open files.
func CheckOpenFileLimit() error { return nil }

// MaxConnections returns the maximum numbers of connections in the settings, in total and per user.
func MaxConnections(c *config.Config) (total, perUser int) {
	return c.MaxConnections, c.MaxConnectionsPerUser
}

// examineResourceLimits reports nothing, since on Windows only memory limits the number of open files.
func examineResourceLimits(*config.Config) []store.Finding { return nil }
