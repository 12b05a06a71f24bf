//go:build linux || windows

package test

import (
	"fmt"
	"testing"
	"time"
)

// A client that disconnects right after its request neither harms the writer nor leaves a partial
// job.
func TestDisconnectedEnqueueLeavesNoPartialJob(t *testing.T) {
	q := newQueue(t, "")
	q.start("--workers", "0")
	for i := range 50 {
		c, err := dial(q.dir)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, `{"jsonrpc":"2.0","id":1,"method":"enqueue","params":{"id":"gone-%d","command":"true"}}`+"\n", i)
		c.Close()
	}
	id := q.must("enqueue", "true")
	q.must("worker", "scale", "4")
	q.waitUntil("all that is stored has run", 20*time.Second, func() bool {
		return q.must("list", "-s", "waiting", "-q") == "" && q.must("list", "-s", "processing", "-q") == ""
	})
	if j := q.show(id); j.State != "completed" {
		t.Errorf("job of the client that stayed is %s", j.State)
	}
}
