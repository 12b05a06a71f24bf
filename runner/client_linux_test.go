package runner

import (
	"os"
	"testing"

	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// If a runner has switched to an account, its pid comes from the kernel, not from its reply. The reply
// could name any process, and messages advise people to end the process of a runner that hangs.
func TestAccountRunnerPIDComesFromKernel(t *testing.T) {
	for parent, want := range map[string]int{"": 1, rundir.AccountDirPrefix + "daemon": os.Getpid()} {
		c, err := Connect(startFakeRunner(t, parent, &wire.HelloReply{ProtocolVersion: 1, PID: 1}), 7, "1")
		if err != nil {
			t.Fatal(err)
		}
		c.conn.Close()
		if c.HelloReply.PID != int64(want) {
			t.Errorf("parent directory %q: the reply has pid %d, want %d", parent, c.HelloReply.PID, want)
		}
	}
}
