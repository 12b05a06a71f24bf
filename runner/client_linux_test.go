package runner

import (
	"os"
	"testing"

	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// For a runner that has switched to an account, Connect takes the pid from the kernel and not from the runner's
// reply. The reply could contain any pid, and messages advise people to end a runner that hangs by its pid.
func TestAccountRunnerPIDComesFromKernel(t *testing.T) {
	for parent, want := range map[string]int{"": 1, rundir.AccountDirPrefix + "daemon": os.Getpid()} {
		c, err := Connect(startFakeRunner(t, parent, &wire.HelloReply{ProtocolVersion: 1, RunnerPID: 1}), 7, "1")
		if err != nil {
			t.Fatal(err)
		}
		c.conn.Close()
		if c.HelloReply.RunnerPID != int64(want) {
			t.Errorf("parent directory %q: the reply has pid %d, want %d", parent, c.HelloReply.RunnerPID, want)
		}
	}
}
