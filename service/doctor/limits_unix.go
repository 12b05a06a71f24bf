//go:build unix

package doctor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/store"
)

// limitEnforcementText describes how jobs are limited without control groups.
// See docs/decisions/0072.
const limitEnforcementText = "the runner enforces timeouts and output limits; it finds the processes of a job by " +
	"their process group, their session and a marker in the environment; to use control groups, which are more " +
	"reliable, install the service (queuectl service install) or enable lingering (loginctl enable-linger)"

// cgroupLimitEnforcementText describes how jobs are limited with control groups.
const cgroupLimitEnforcementText = "the runner enforces timeouts and output limits, and uses one " +
	"control group per worker " +
	"to end process trees"

// Numbers of file descriptors and connections that the service needs. CheckOpenFileLimit and examineResourceLimits
// compare them with the resource limits of this process (setrlimit(2)).
const (
	serviceFileDescriptors = 64 // used by the service in addition to connections
	fileDescriptorsPerJob  = 3  // used by the runner for each running job
	minRequiredConnections = 32 // includes the connections that are reserved for admins
)

// softResourceLimit returns a soft resource limit of this process. ok is false if there is no limit.
func softResourceLimit(resource int) (n uint64, ok bool) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(resource, &limit); err != nil || limit.Cur == unix.RLIM_INFINITY {
		return 0, false
	}
	return uint64(limit.Cur), true
}

// CheckOpenFileLimit returns an error if this process may open too few files for the service to work.
func CheckOpenFileLimit() error {
	if n, ok := softResourceLimit(unix.RLIMIT_NOFILE); ok && n < serviceFileDescriptors+minRequiredConnections {
		return fmt.Errorf("the limit of open files is %d, but at least %d are needed; raise this limit "+
			"(LimitNOFILE=, ulimit -Hn)", n, serviceFileDescriptors+minRequiredConnections)
	}
	return process.CheckAddressSpaceLimit()
}

// MaxConnections returns the maximum numbers of connections, in total and per user. If the limit of open files is too
// low for the numbers in the settings, MaxConnections reduces both in the same proportion.
func MaxConnections(c *config.Config) (total, perUser int) {
	total, perUser = c.MaxConnections, c.MaxConnectionsPerUser
	n, ok := softResourceLimit(unix.RLIMIT_NOFILE)
	if room := max(int64(n)-serviceFileDescriptors, minRequiredConnections); ok && room < int64(total) {
		perUser = max(1, int(int64(perUser)*room/int64(total)))
		total = int(room)
	}
	return total, perUser
}

// examineResourceLimits reports resource limits of this process that are too low for the settings.
func examineResourceLimits(c *config.Config) (findings []store.Finding) {
	warn := func(advice, format string, args ...any) {
		findings = append(findings, Warning("limits", fmt.Sprintf(format, args...), advice))
	}
	n, ok := softResourceLimit(unix.RLIMIT_NOFILE)
	if need := uint64(serviceFileDescriptors + c.WorkerCount()*fileDescriptorsPerJob); ok && n < need {
		warn(`raise the hard limit of open files (LimitNOFILE=, ulimit -Hn) or lower the setting "workers"`,
			"the limit of open files is %d, but %d workers may need %d open files, so jobs may have to wait", n, c.WorkerCount(),
			need)
	}
	if all, user := MaxConnections(c); all < c.MaxConnections {
		warn("raise the hard limit of open files (LimitNOFILE=, ulimit -Hn) or lower the setting max_connections",
			"the limit of open files is %d, which allows %d connections (%d per user) instead of %d (setting max_connections)",
			n, all, user, c.MaxConnections)
	}
	if n, ok := softResourceLimit(unix.RLIMIT_FSIZE); ok {
		warn("raise the limit of file sizes (LimitFSIZE=, ulimit -f)",
			"files are limited to %s, so new jobs are refused once the database file is nearly that large",
			queue.DescribeSize(int64(n)))
	}
	if len(findings) == 0 {
		findings = append(findings, passed("limits",
			fmt.Sprintf("the limit of open files suffices for %d workers and %d connections", c.WorkerCount(),
				c.MaxConnections)))
	}
	return findings
}
