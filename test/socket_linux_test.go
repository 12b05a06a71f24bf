package test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// deadSocket creates a socket file without a listening process.
func deadSocket(t *testing.T, path string) {
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
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	socket := q.path(socketName)
	for _, c := range []struct {
		what string
		do   func() error
	}{
		{"removed", func() error { return os.Remove(socket) }},
		{"moved away", func() error { return os.Rename(socket, socket+".old") }},
		{"replaced by a dead one", func() error { deadSocket(t, socket+".dead"); return os.Rename(socket+".dead", socket) }},
		{"replaced by a file that then goes", func() error {
			if err := os.Rename(q.writeFile("file", "mine"), socket); err != nil {
				return err
			}
			q.waitUntil("the service names the file in its way", 10*time.Second,
				func() bool { return strings.Contains(q.logText(), "this file exists and is not a socket") })
			if text := q.readFile(socketName); text != "mine" {
				t.Errorf("the file became %q", text)
			}
			return os.Remove(socket)
		}},
	} {
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		q.waitUntil("it answers again when its socket was "+c.what, 10*time.Second, q.isAnswering)
		if info, err := os.Lstat(socket); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", c.what, info, err)
		}
		if n := w.counts()["pending"]; n != 0 {
			t.Errorf("%s: %d pending on the connection from before", c.what, n)
		}
		if remaining, _ := filepath.Glob(q.path(".s*")); len(remaining) != 0 {
			t.Errorf("%s: left behind: %v", c.what, remaining)
		}
	}
	q.must("enqueue", "true")
	if code := q.stop(); code != 0 {
		t.Errorf("stop: exit code %d", code)
	}
}

// If the socket file is removed again and again, the service creates it again at most once per second.
func TestSocketIsReboundOncePerSecond(t *testing.T) {
	q := startQueue(t, "--workers", "0")
	before := cpuTicks(t, q.cmd.Process.Pid)
	started, bound := time.Now(), 0
	for ; time.Since(started) < 3*time.Second; time.Sleep(time.Millisecond) {
		if os.Remove(q.path(socketName)) == nil {
			bound++
		}
	}
	if bound < 2 || bound > 5 { // this count includes the socket from the start of the service
		t.Errorf("removed %d times within 3 s", bound)
	}
	if spent := cpuTicks(t, q.cmd.Process.Pid) - before; spent > 20 {
		t.Errorf("%d ticks of CPU meanwhile", spent)
	}
	q.waitUntil("it answers", 10*time.Second, q.isAnswering)
}

// If another service listens at the path of the socket, the service does not replace that socket. It binds
// the path again after the other service has stopped listening.
func TestOtherServicesSocketIsKept(t *testing.T) {
	q := startQueue(t, "--workers", "0")
	socket := q.path(socketName)
	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket + ".other", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.SetUnlinkOnClose(false)
	if err := os.Rename(socket+".other", socket); err != nil {
		t.Fatal(err)
	}
	q.waitUntil("the service says who stands in its way", 10*time.Second, func() bool {
		return strings.Contains(q.logText(), "already listens there")
	})
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	other.Close()
	q.waitUntil("the place is taken again", 20*time.Second, q.isAnswering)
}

// openFiles returns the number of open descriptors of a process.
func openFiles(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// If a client passes descriptors over the socket, the service closes them, even if there are as many as the
// kernel accepts. The number of open descriptors of the service does not grow, and it continues to answer.
func TestPassedDescriptorsAreClosed(t *testing.T) {
	const perMessage, messages = 253, 1000
	q := startQueue(t, "--workers", "0")
	w, pid := q.dial(), q.cmd.Process.Pid
	other := q.dial()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fds := make([]int, perMessage)
	for i := range fds {
		fds[i] = int(null.Fd())
	}
	other.mustCall("hello", nil, nil)
	before, worst := openFiles(t, pid), 0
	rights := syscall.UnixRights(fds...)
	for i := range messages {
		line := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"hello"}`+"\n", i)
		if _, _, err := w.Conn.(*net.UnixConn).WriteMsgUnix([]byte(line), rights, nil); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		if a, err := w.read(); err != nil || a.Error != nil || string(a.ID) != fmt.Sprint(i) {
			t.Fatalf("message %d: %+v, %v", i, a, err)
		}
		if i%50 == 0 {
			worst = max(worst, openFiles(t, pid))
		}
	}
	if worst = max(worst, openFiles(t, pid)); worst > before+4 {
		t.Errorf("the service has %d descriptors, %d before", worst, before)
	}
	other.mustCall("hello", nil, nil)
	if id := q.must("enqueue", "true"); id == "" {
		t.Error("no id")
	}
}

// An idle service ends immediately with exit code 74 when its database is removed or replaced.
func TestRemovedDatabaseEndsIdleService(t *testing.T) {
	t.Parallel()
	for what, do := range map[string]func(q *queue) error{
		"removed":         func(q *queue) error { return os.Remove(q.path("queuectl.db")) },
		"its WAL removed": func(q *queue) error { return os.Remove(q.path("queuectl.db-wal")) },
		"replaced by a copy": func(q *queue) error {
			raw, err := os.ReadFile(q.path("queuectl.db"))
			if err != nil {
				return err
			}
			return os.Rename(q.writeFile("copy", string(raw)), q.path("queuectl.db"))
		},
	} {
		q := newQueue(t, "")
		q.start("--workers", "1")
		if err := do(q); err != nil {
			t.Fatal(err)
		}
		select {
		case <-q.ended:
			if code := q.cmd.ProcessState.ExitCode(); code != 74 {
				t.Errorf("%s: exit code %d, want 74", what, code)
			}
			q.cmd = nil
		case <-time.After(5 * time.Second):
			t.Errorf("%s: the service goes on", what)
		}
	}
}

// isAnswering reports whether the service accepts and answers a new connection.
func (q *queue) isAnswering() bool {
	c, err := dial(q.dir)
	if err != nil {
		return false
	}
	defer c.Close()

	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := fmt.Fprintln(c, `{"jsonrpc":"2.0","id":1,"method":"hello"}`); err != nil {
		return false
	}
	var a wireMessage
	return json.NewDecoder(c).Decode(&a) == nil && a.Error == nil
}
