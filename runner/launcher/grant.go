package launcher

import (
	"net"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/runner/process"
)

// Grant describes the runner that this process may run as. Accept returns it for a request that a
// service sent through a connection.
type Grant struct {
	Root       string // directory that contains the directories of the runners
	Tmpdir     string // job_tmpdir; "" if none is set
	Isolated   bool   // the runner runs one isolated job
	ServiceUID int    // uid of the service, from the kernel
	// PolicyFile is the path of the policy file of a runner that stays root. It is "" for a runner that
	// runs all jobs under the account of this process.
	PolicyFile string
	// Credentials holds the systemd credentials that jobs may use, by name, if this process has switched
	// to an account.
	Credentials map[string][]byte
	Cgroups     *process.Cgroups
	// NoCgroupsReason is the reason why jobs get no control groups although the system delegated one; nil if
	// they get control groups, or none was delegated.
	NoCgroupsReason error
	// OnlyKilledRunner reports that the request was to kill another runner. That has been done, and this process
	// must not continue as a runner.
	OnlyKilledRunner bool
	Conn             net.Conn // the connection on which the request came and the reply is sent
}

// Accounts applies the runner's policy to the system's accounts. It reads the policy again when the file
// changes. Its methods may be called concurrently. Only Linux supports it.
type Accounts struct {
	PolicyFile string // path of the policy file
	ServiceUID int    // uid of the service
	Directory  *accounts.Directory
	Cache      policyCache
}
