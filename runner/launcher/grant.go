package launcher

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/process"
)

// RunnerSettings describes a runner: where it keeps its files, and whose jobs it runs.
type RunnerSettings struct {
	RunnersDir string // directory that contains the directories of all runners
	// JobTmpdir is the setting job_tmpdir: directory for the jobs' private directories; "" means below RunnersDir.
	JobTmpdir            string
	ServesOneIsolatedJob bool // the runner runs one isolated job only
	// ServiceUID is the uid of the service. The runner accepts connections only from this uid and from root.
	ServiceUID int
	// PolicyFile is the path of the policy file, which says whose jobs the runner may run. If PolicyFile is set, the
	// runner runs as root and starts each job under the job's account. PolicyFile is "" for a runner that does not run as
	// root.
	PolicyFile string
	// Credentials holds the systemd credentials that jobs may use, by name. It is set only for a runner that
	// started as root and then switched to the account of its jobs.
	Credentials map[string][]byte
	// Cgroups manages the control groups of the jobs. It is nil if the runner has none.
	Cgroups *process.Cgroups
}

// AcceptedSpawnRequest describes the runner that this process should run. HandleSpawnRequest returns it after it
// has checked a service's request.
type AcceptedSpawnRequest struct {
	RunnerSettings
	// NoCgroupsReason says why jobs get no control groups although this process may divide its control group. It is nil if
	// jobs get control groups. It is also nil if this process may not divide its control group.
	NoCgroupsReason error
	// KilledOtherRunner means that the request was to kill another runner, and that the runner was killed. This process
	// must then end without running a runner.
	KilledOtherRunner bool
	ServiceConn       net.Conn // the connection on which the request came and the reply is sent
}

// ReplyReady replies to the service with the name of the runner's directory. Call it when the runner
// accepts connections.
func (g *AcceptedSpawnRequest) ReplyReady(runnerDir string) {
	// An error can only mean that the service has ended, so ignore it.
	fmt.Fprintln(g.ServiceConn, runner.ReadyReplyPrefix+filepath.Base(runnerDir))
	g.ServiceConn.Close()
}

// ReplyError replies to the service with the reason why no runner was started. After ReplyReady it does
// nothing.
func (g *AcceptedSpawnRequest) ReplyError(reason error) {
	fmt.Fprintln(g.ServiceConn, runner.RefusedReplyPrefix+strings.ReplaceAll(reason.Error(), "\n", "; "))
	g.ServiceConn.Close()
}

// AccountAuthorizer looks up accounts of the system, and checks whether the policy allows their jobs. Each look-up
// reads the policy file again if the file has changed, so a change applies from the next look-up. The methods
// may be called concurrently. Only Linux supports AccountAuthorizer.
type AccountAuthorizer struct {
	PolicyFile      string // path of the policy file
	ServiceUID      int    // uid of the service
	AccountResolver *accounts.Resolver
	PolicyCache     policyCache // the policy that was read last; only methods of Accounts use it
}
