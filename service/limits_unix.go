//go:build unix

package service

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/store"
)

// enforcement says what holds a job within its bounds here.
const enforcement = "timeouts and output by the runner; trees are ended by process group, session and cookie, without cgroups"

// A connection takes a descriptor of the service, a running job three of the runner.
const (
	ownDescriptors = 64
	jobDescriptors = 3
)

// examineLimits looks whether descriptors suffice for what the settings allow.
func examineLimits(c *config.Config) []store.Finding {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return []store.Finding{{Check: "limits", Level: store.Warning, Message: fmt.Sprintf("how many descriptors there may be: %v", err)}}
	}
	need := uint64(ownDescriptors + max(c.MaxConnections, c.WorkerCount()*jobDescriptors))
	if uint64(limit.Max) < need {
		return []store.Finding{{Check: "limits", Level: store.Warning, Message: fmt.Sprintf("%d descriptors are allowed, but %d workers and %d connections may need %d", limit.Max, c.WorkerCount(), c.MaxConnections, need), Next: "raise the hard limit of open files (LimitNOFILE=, ulimit -Hn) or lower max_connections"}}
	}
	return []store.Finding{{Check: "limits", Level: store.Fine, Message: fmt.Sprintf("%d descriptors, enough for %d workers and %d connections", limit.Max, c.WorkerCount(), c.MaxConnections)}}
}
