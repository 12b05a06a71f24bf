package access

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/testrig"
)

// These constants are the uids of two users who are neither root nor the user that runs the tests.
const (
	attackerUID = 61234
	victimUID   = 61235
)

// recordingServer is a server that records the first line of each connection and never replies.
type recordingServer struct {
	socketPath    string
	receivedLines chan string
}

// startRecordingServerAs creates a socket as the user with the given uid, and serves it with a recordingServer. Clients
// see this user as the owner of the server. If uid is not the uid of this process, the test must run as root.
func startRecordingServerAs(t *testing.T, uid int, path string) *recordingServer {
	t.Helper()
	var l net.Listener
	var err error
	var thread sync.WaitGroup
	thread.Go(func() {
		if uid != os.Geteuid() {
			runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
			id := uintptr(uid)
			// The raw system call changes only this thread.
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, id, id, id); errno != 0 {
				err = errno
				return
			}
		}
		l, err = net.Listen("unix", path)
	})
	thread.Wait()
	if err = errors.Join(err, os.Chmod(path, 0o777)); err != nil { // every user may connect
		t.Fatalf("listen as uid %d: %v", uid, err)
	}
	p := &recordingServer{socketPath: path, receivedLines: make(chan string, 16)}
	var server sync.WaitGroup
	server.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.SetReadDeadline(time.Now().Add(10 * time.Second))
			// A connection may end without a line. Then record an empty line.
			line, _ := bufio.NewReader(c).ReadString('\n')
			p.receivedLines <- line
			c.Close()
		}
	})
	t.Cleanup(func() {
		l.Close()
		server.Wait()
	})
	return p
}

// receivedText returns the text that clients have sent until now. The server handles connections one after
// another. So receivedText opens one more connection, sends a known line, and waits for it: then all
// earlier lines have arrived.
func (p *recordingServer) receivedText(t *testing.T) (text string) {
	t.Helper()
	c, err := net.Dial("unix", p.socketPath)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "enough\n"); err != nil {
		t.Fatal(err)
	}
	for line := range p.receivedLines {
		if line == "enough\n" {
			return text
		}
		text += line
	}
	return text
}

// newWorldWritableQueue returns a queue in whose directory every user may create a socket and run the program.
func newWorldWritableQueue(t *testing.T) *testrig.Harness {
	t.Helper()
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.ClientPath = testrig.InstallPrograms(q, q.ClientPath, q.StateDir)
	if err := os.Chmod(q.StateDir, 0o777); err != nil {
		t.Fatal(err)
	}
	return q
}

// commandAsUser makes a command run as another user.
func commandAsUser(cmd *exec.Cmd, uid int) *exec.Cmd {
	if uid != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	return cmd
}

// A client sends requests only to a server that runs as the client's user, as root or as the service account,
// because commands and environment variables may be secret. If the test does not run as root, it uses only a
// server that runs as its own user.
func TestForeignServersReceiveNoRequests(t *testing.T) {
	q := newWorldWritableQueue(t)
	type row struct {
		name           string
		client, server int
		trusted        bool
	}
	self := os.Geteuid()
	cases := []row{{"one's own", self, self, true}}
	if self == 0 {
		cases = append(cases,
			row{"a user's, to root", 0, attackerUID, false}, row{"a user's, to another", victimUID, attackerUID, false},
			row{"a user's own", victimUID, victimUID, true}, row{"root's, to a user", victimUID, 0, true},
			row{"the service account's", victimUID, attackerUID, true})
	}
	for i, c := range cases {
		p := startRecordingServerAs(t, c.server, q.Path(fmt.Sprint("s", i)))
		cmd := commandAsUser(q.CLICommand("--socket", p.socketPath, "enqueue", "--env", "PASSWORD=secret", "true"), c.client)
		if c.name == "the service account's" {
			cmd = victimCommand(q, attackerUID, cmd.Args)
		}
		r := testrig.RunCommand(t, cmd)
		received := p.receivedText(t)
		if c.trusted {
			if !strings.Contains(received, "secret") {
				t.Errorf("%s: the server received %q, want the request; %+v", c.name, received, r)
			}
			continue
		}
		if received != "" {
			t.Errorf("%s: the server received %q, want nothing", c.name, received)
		}
		if r.ExitCode != 5 || r.Stdout != "" || !strings.Contains(r.Stderr, p.socketPath) ||
			!strings.Contains(r.Stderr, fmt.Sprint("uid ", c.server)) {
			t.Errorf("%s: %+v; want code 5, and the socket and the uid on stderr", c.name, r)
		}
	}
}

// victimCommand returns a command that runs argv as the victim. The command sees an /etc/passwd in which the service
// account has the uid serviceUID.
func victimCommand(q *testrig.Harness, serviceUID int, argv []string) *exec.Cmd {
	q.Helper()
	accounts := q.WriteFile("passwd", fmt.Sprintf("root:x:0:0::/root:/bin/sh\nqueuectl:x:%d:%d::/:/bin/false\n",
		serviceUID, serviceUID))
	if err := os.Chmod(accounts, 0o644); err != nil {
		q.Fatal(err)
	}
	script := `mount --bind "$1" /etc/passwd && shift && exec setpriv --clear-groups --reuid "$1" --regid "$@"`
	return exec.Command("unshare", append([]string{"--mount", "sh", "-c", script, "sh", accounts, fmt.Sprint(victimUID)},
		argv...)...)
}

// If a server belongs to another user, every command reports that and ends, regardless of how the socket was
// chosen. No command starts a second service.
func TestForeignServerRefusesEveryCommand(t *testing.T) {
	q := newWorldWritableQueue(t)
	servers := []int{os.Geteuid()}
	if os.Geteuid() == 0 { // only root can act as another user
		servers = append(servers, attackerUID)
	}
	for _, server := range servers {
		home := q.Path(fmt.Sprint("home", server))
		stateDir := filepath.Join(home, "queuectl")
		if err := errors.Join(os.MkdirAll(stateDir, 0o777), os.Chmod(stateDir, 0o777)); err != nil {
			t.Fatal(err)
		}
		p := startRecordingServerAs(t, server, filepath.Join(stateDir, "queuectl.sock"))
		state, chosen := "XDG_STATE_HOME="+home, "QUEUECTL_SOCKET="+p.socketPath
		for _, c := range []struct {
			env  string
			args []string
			code int
		}{
			{state, []string{"enqueue", "true"}, 5},
			{state, []string{"worker", "start"}, 5},
			{state, []string{"run", "true"}, 125},
			{state, []string{"wait", "x"}, 125},
			{state, []string{"list"}, 5},
			{state, []string{"logs", "-f", "x"}, 5},
			{state, []string{"cancel", "x"}, 5},
			{state, []string{"config", "set", "workers", "1"}, 5},
			{chosen, []string{"status"}, 5},
			{"", []string{"--dir", stateDir, "show", "x"}, 5},
			{"", []string{"--socket", p.socketPath, "dlq", "list"}, 5},
		} {
			cmd := exec.Command(q.ClientPath, c.args...)
			cmd.Dir, cmd.Env = q.StateDir, []string{"HOME=" + q.StateDir, c.env}
			r := testrig.RunCommand(t, cmd)
			received := p.receivedText(t)
			if server == os.Geteuid() {
				if !strings.Contains(received, `"jsonrpc"`) {
					t.Errorf("%q: a server of the same user received %q, want the request", c.args, received)
				}
				continue
			}
			if received != "" || r.ExitCode != c.code || r.Stdout != "" || !strings.Contains(r.Stderr, "nothing was sent") {
				t.Errorf("%q: the server received %q, %+v; want nothing, code %d, and a note on stderr",
					c.args, received, r, c.code)
			}
		}
		if files, err := filepath.Glob(filepath.Join(stateDir, "*")); err != nil || len(files) != 1 {
			t.Errorf("files in the state directory: %q, %v; want only the socket", files, err)
		}
	}
}

// In a user namespace without a uid mapping, all users have the same id, so every server seems to run as the
// client's user. The client then sends nothing to any server.
func TestServerOfUnmappedUserReceivesNoRequests(t *testing.T) {
	q := newWorldWritableQueue(t)
	p := startRecordingServerAs(t, os.Geteuid(), q.Path("s"))
	cmd := q.CLICommand("--socket", p.socketPath, "enqueue", "--env", "PASSWORD=secret", "true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	r := testrig.RunCommand(t, cmd)
	if received := p.receivedText(t); received != "" || r.ExitCode != 5 || !strings.Contains(r.Stderr, "user namespace") {
		t.Errorf("the server received %q, %+v; want nothing, code 5 and the reason", received, r)
	}
}
