package launcher

import (
	"net"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/runner/process"
)

// RunnerSettings describes a runner: where it keeps its files, and whose jobs it runs.
type RunnerSettings struct {
	Root     string // directory that contains the directories of all runners
	Tmpdir   string // job_tmpdir: holds the private directories of jobs; "" is a directory below Root
	Isolated bool   // the runner runs one isolated job only
	// ServiceUID is the uid of the service. The runner accepts connections from this uid and from root.
	ServiceUID int
	// PolicyFile is the path of the policy file, which says whose jobs the runner may run. If it is set,
	// the runner runs as root and starts each job under the account that its Start frame names. It is
	// "" for a runner without root privileges.
	PolicyFile string
	// Credentials holds the systemd credentials that jobs may use, by name. It is set for a runner that
	// started as root and then switched to the account of its jobs for good.
	Credentials map[string][]byte
	// Cgroups manages the control groups of the jobs. It is nil if the runner has none.
	Cgroups *process.Cgroups
}

// Grant describes the runner that this process may run as. Accept returns it for a request that a
// service sent through a connection.
type Grant struct {
	RunnerSettings
	// NoCgroupsReason is the reason why jobs get no control groups although the system delegated one; nil if
	// they get control groups, or none was delegated.
	NoCgroupsReason error
	// OnlyKilledRunner reports that the request was to kill another runner. That has been done, and this process
	// must not continue as a runner.
	OnlyKilledRunner bool
	Conn             net.Conn // the connection on which the request came and the reply is sent
}

// Accounts applies the runner's policy to the system's accounts. Each look-up reads the policy, so a change
// applies immediately. Its methods may be called concurrently. Only Linux supports it.
type Accounts struct {
	PolicyFile string // path of the policy file
	ServiceUID int    // uid of the service
	Directory  *accounts.Directory
}
