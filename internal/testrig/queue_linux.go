package testrig

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// node is a node in the output of "queuectl node list".
type node struct {
	Name, State string
	This        bool
	Running     int
}

// ListNodes returns the nodes that "queuectl node list" prints, by name.
func (q *Harness) ListNodes() map[string]node {
	q.Helper()
	var nodes []node
	if err := json.Unmarshal([]byte(q.MustRunCLI("node", "list", "--json")), &nodes); err != nil {
		q.Fatal(err)
	}
	byName := map[string]node{}
	for _, n := range nodes {
		byName[n.Name] = n
	}
	return byName
}

// CountStartedAttempts returns the number of attempts that the runners have recorded in their running tables. A running
// table is a file in which a runner lists its running attempts.
func (q *Harness) CountStartedAttempts() (n int) {
	const slotBytes = 64 // the first slot is the header of the table
	tables, _ := filepath.Glob(q.RunnerDir() + "/*/running")
	for _, name := range tables {
		raw, _ := os.ReadFile(name)
		for at := slotBytes; at+slotBytes <= len(raw); at += slotBytes {
			// The first 8 bytes contain the job's number; 0 means that the slot is free.
			if strings.Trim(string(raw[at:at+8]), "\x00") != "" {
				n++
			}
		}
	}
	return n
}

// RunCLIWithin runs a queuectl command. The test fails if the command takes longer than timeout.
func (q *Harness) RunCLIWithin(timeout time.Duration, args ...string) CommandResult {
	q.Helper()
	started := time.Now()
	got := q.RunCLI(args...)
	if elapsed := time.Since(started); elapsed > timeout {
		q.Errorf("%v took %v, want at most %v", args, elapsed, timeout)
	}
	return got
}

// CommandAwaitingQueueFile returns a shell command that waits until a file with the given name exists in the
// directory of the queue. The command also ends if the directory is removed.
func (q *Harness) CommandAwaitingQueueFile(name string) string {
	return fmt.Sprintf("while [ -d %s ] && [ ! -e %s ]; do sleep 0.01; done", q.StateDir, q.Path(name))
}

// IsServiceAnswering reports whether the service accepts and answers a new connection.
func (q *Harness) IsServiceAnswering() bool {
	c, err := DialService(q.StateDir)
	if err != nil {
		return false
	}
	defer c.Close()

	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := fmt.Fprintln(c, `{"jsonrpc":"2.0","id":1,"method":"hello"}`); err != nil {
		return false
	}
	var a ServiceMessage
	return json.NewDecoder(c).Decode(&a) == nil && a.Error == nil
}

// IsFullScale reports whether tests use the numbers and times that the documentation promises, instead of smaller ones.
// Such tests take minutes; see "make gates".
func IsFullScale() bool { return os.Getenv("QUEUECTL_SOAK") != "" }

// FreeLoopbackAddress returns a loopback address with a free port.
func FreeLoopbackAddress(t testing.TB) string {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer free.Close()
	return free.Addr().String()
}
