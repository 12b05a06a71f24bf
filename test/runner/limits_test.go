//go:build linux || windows

package runner

import (
	"fmt"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// If a client disconnects right after its request, the service continues to store the jobs of other clients. The job of
// the interrupted request is stored completely or not at all.
func TestDisconnectedEnqueueLeavesNoPartialJob(t *testing.T) {
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "0")
	for i := range 50 {
		c, err := testrig.DialService(q.StateDir)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, `{"jsonrpc":"2.0","id":1,"method":"enqueue","params":{"id":"gone-%d","command":"true"}}`+"\n", i)
		c.Close()
	}
	id := q.MustRunCLI("enqueue", "true")
	q.MustRunCLI("worker", "scale", "4")
	q.WaitUntil("all that is stored has run", 20*time.Second, func() bool {
		return q.MustRunCLI("list", "-s", "waiting", "-q") == "" && q.MustRunCLI("list", "-s", "processing", "-q") == ""
	})
	if j := q.ShowJob(id); j.State != "completed" {
		t.Errorf("job of the client that stayed is %s", j.State)
	}
}
