package access

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// createStaleSocket creates a socket file on which no process listens.
func createStaleSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}

// If the socket file is removed, moved away or replaced, the service creates its socket again. Existing
// connections stay open.
func TestRemovedSocketIsRebound(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	socket := q.Path(testrig.SocketName)
	for _, c := range []struct {
		what string
		do   func() error
	}{
		{"removed", func() error { return os.Remove(socket) }},
		{"moved away", func() error { return os.Rename(socket, socket+".old") }},
		{"replaced by a dead one", func() error {
			createStaleSocket(t, socket+".dead")
			return os.Rename(socket+".dead", socket)
		}},
		{"replaced by a file that then goes", func() error {
			if err := os.Rename(q.WriteFile("file", "mine"), socket); err != nil {
				return err
			}
			q.WaitUntil("the service names the file in its way", 10*time.Second,
				func() bool { return strings.Contains(q.ReadAllLogs(), "this file exists and is not a socket") })
			if text := q.ReadFile(testrig.SocketName); text != "mine" {
				t.Errorf("the service changed the file at the path of the socket to %q", text)
			}
			return os.Remove(socket)
		}},
	} {
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		q.WaitUntil("it answers again when its socket was "+c.what, 10*time.Second, q.IsServiceAnswering)
		if info, err := os.Lstat(socket); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", c.what, info, err)
		}
		if n := w.JobCountsByState()["pending"]; n != 0 {
			t.Errorf("%s: %d pending jobs, according to the earlier connection", c.what, n)
		}
		if remaining, _ := filepath.Glob(q.Path(".s*")); len(remaining) != 0 {
			t.Errorf("%s: remaining files: %v", c.what, remaining)
		}
	}
	q.MustRunCLI("enqueue", "true")
	if code := q.StopService(); code != 0 {
		t.Errorf("stop: exit code %d", code)
	}
}

// If the socket file is removed again and again, the service creates it again at most once per second.
func TestSocketIsReboundOncePerSecond(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "0")
	before := testrig.ProcessCPUTicks(t, q.ServiceCmd.Process.Pid)
	started, bound := time.Now(), 0
	for ; time.Since(started) < 3*time.Second; time.Sleep(time.Millisecond) {
		if os.Remove(q.Path(testrig.SocketName)) == nil {
			bound++
		}
	}
	if bound < 2 || bound > 5 { // including the socket from the start of the service
		t.Errorf("the service created its socket %d times within 3 s", bound)
	}
	if spent := testrig.ProcessCPUTicks(t, q.ServiceCmd.Process.Pid) - before; spent > 20 {
		t.Errorf("recreating the socket used %d ticks of CPU, want at most 20", spent)
	}
	q.WaitUntil("it answers", 10*time.Second, q.IsServiceAnswering)
}

// If another service listens at the path of the socket, the service does not replace that socket. The service creates
// its own socket after the other service has stopped.
func TestOtherServicesSocketIsKept(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	socket := q.Path(testrig.SocketName)
	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket + ".other", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.SetUnlinkOnClose(false)
	if err := os.Rename(socket+".other", socket); err != nil {
		t.Fatal(err)
	}
	q.WaitUntil("the service logs that another process listens on its socket", 10*time.Second, func() bool {
		return strings.Contains(q.ReadAllLogs(), "already listens there")
	})
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	other.Close()
	q.WaitUntil("the place is taken again", 20*time.Second, q.IsServiceAnswering)
}

// openFileCount returns the number of open descriptors of a process.
func openFileCount(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// A client can pass file descriptors over the socket. The service closes these descriptors, even if the client passes
// as many as the kernel accepts. So the number of the service's descriptors does not grow, and the service continues to
// reply.
func TestPassedDescriptorsAreClosed(t *testing.T) {
	const perMessage, messages = 253, 1000
	q := testrig.StartQueue(t, "--workers", "0")
	w, pid := q.DialService(), q.ServiceCmd.Process.Pid
	other := q.DialService()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fds := make([]int, perMessage)
	for i := range fds {
		fds[i] = int(null.Fd())
	}
	other.MustCall("hello", nil, nil)
	before, worst := openFileCount(t, pid), 0
	rights := syscall.UnixRights(fds...)
	for i := range messages {
		line := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"hello"}`+"\n", i)
		if _, _, err := w.Conn.(*net.UnixConn).WriteMsgUnix([]byte(line), rights, nil); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		if a, err := w.ReadMessage(); err != nil || a.Error != nil || string(a.ID) != fmt.Sprint(i) {
			t.Fatalf("message %d: %+v, %v", i, a, err)
		}
		if i%50 == 0 {
			worst = max(worst, openFileCount(t, pid))
		}
	}
	if worst = max(worst, openFileCount(t, pid)); worst > before+4 {
		t.Errorf("the service has %d descriptors, %d before", worst, before)
	}
	other.MustCall("hello", nil, nil)
	if id := q.MustRunCLI("enqueue", "true"); id == "" {
		t.Error("enqueue printed no id")
	}
}

// An idle service ends immediately with exit code 74 when its database is removed or replaced.
func TestRemovedDatabaseEndsIdleService(t *testing.T) {
	t.Parallel()
	for what, do := range map[string]func(q *testrig.Harness) error{
		"removed":         func(q *testrig.Harness) error { return os.Remove(q.Path("queuectl.db")) },
		"its WAL removed": func(q *testrig.Harness) error { return os.Remove(q.Path("queuectl.db-wal")) },
		"replaced by a copy": func(q *testrig.Harness) error {
			raw, err := os.ReadFile(q.Path("queuectl.db"))
			if err != nil {
				return err
			}
			return os.Rename(q.WriteFile("copy", string(raw)), q.Path("queuectl.db"))
		},
	} {
		q := testrig.NewHarness(t, "")
		q.StartService("--workers", "1")
		if err := do(q); err != nil {
			t.Fatal(err)
		}
		select {
		case <-q.ServiceExit:
			if code := q.ServiceCmd.ProcessState.ExitCode(); code != 74 {
				t.Errorf("%s: exit code %d, want 74", what, code)
			}
			q.ServiceCmd = nil
		case <-time.After(5 * time.Second):
			t.Errorf("%s: the service is still running", what)
		}
	}
}
