package test

import (
	"bufio"
	"cmp"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/skip"
)

// person is a user, identified by ids. The account need not exist.
type person struct {
	name   string
	right  string
	uid    int
	gid    int // 0 means the same number as uid
	groups []uint32
}

// The users of the tests, with the rights that accessOfAll gives them.
var (
	outsider = person{name: "outsider", right: "none", uid: 61240}
	reader   = person{name: "reader", right: "read", uid: 61241}
	alice    = person{name: "alice", right: "submit", uid: 61242}
	bob      = person{name: "bob", right: "submit", uid: 61243, groups: []uint32{61299, 61298}}
	operator = person{name: "operator", right: "operate", uid: 61244, groups: []uint32{61297}}
	admin    = person{name: "admin", right: "admin", uid: 61245}
	everyone = []person{outsider, reader, alice, bob, operator, admin}
)

const accessOfAll = "socket_mode = \"0666\"\n[access]\nread = [61241, \"61244\"]\nsubmit = [\"61242\", " +
	"\"@61298\"]\noperate = [\"@61297\"]\nadmin = [\"61245\"]\n"

var rightsInOrder = []string{"none", "read", "submit", "operate", "admin"}

// hasRight reports whether the person has a right.
func (p person) hasRight(right string) bool {
	return slices.Index(rightsInOrder, p.right) >= slices.Index(rightsInOrder, right)
}

// sharedQueue starts a service that every user can connect to, with these settings. It skips the test unless
// the test runs as root, which can act as other users.
func sharedQueue(t *testing.T, settings string, args ...string) *queue {
	t.Helper()
	skip.UnlessRoot(t, "needs root to act for several users; "+
		".ci/run runs it as root, and the tests of control cover the table of rights")
	t.Parallel()
	q := newQueue(t, "")
	q.bin = install(q, q.bin, q.dir)
	if err := os.Chmod(q.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	q.writeFile("queuectl.toml", settings)
	q.start(args...)
	return q
}

// runAs runs the program as a person.
func (q *queue) runAs(p person, args ...string) result {
	q.Helper()
	return runCommand(q, asPerson(q.command(args...), p))
}

// asPerson makes a command run as a person.
func asPerson(cmd *exec.Cmd, p person) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(p.uid),
		Gid: uint32(cmp.Or(p.gid, p.uid)), Groups: p.groups}}
	return cmd
}

// mustAs runs the program as a person, checks that it succeeds and returns its output.
func (q *queue) mustAs(p person, args ...string) string {
	q.Helper()
	r := q.runAs(p, args...)
	if r.code != 0 {
		q.Fatalf("%s: queuectl %v: %+v", p.name, args, r)
	}
	return strings.TrimSpace(r.out)
}

// dialAs connects as a person.
func (q *queue) dialAs(p person) *wire {
	q.Helper()
	c, err := connectAs(q.dir, p)
	if err != nil {
		q.Fatal(err)
	}
	q.Cleanup(func() { c.Close() })
	return &wire{q, c, bufio.NewReaderSize(c, 1<<20), 0}
}

// connectAs connects to the service of a directory as a person. The service sees the person's ids for the
// whole connection, even though this process then uses it. It waits for a full backlog, as the client does.
func connectAs(dir string, p person) (c net.Conn, err error) {
	var thread sync.WaitGroup
	thread.Go(func() {
		// The thread is never unlocked, so it ends with the goroutine.
		runtime.LockOSThread()
		// One extra group makes sure that groups[0] exists.
		id, groups := uintptr(p.uid), append(slices.Clone(p.groups), 0)
		for _, call := range [][4]uintptr{ // change the ids of this thread only
			{unix.SYS_SETGROUPS, uintptr(len(p.groups)), uintptr(unsafe.Pointer(&groups[0])), 0},
			{unix.SYS_SETRESGID, id, id, id}, {unix.SYS_SETRESUID, id, id, id},
		} {
			if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
				err = errno
				return
			}
		}
		runtime.KeepAlive(groups)
		c, err = blockingDial(filepath.Join(dir, socketName))
	})
	thread.Wait()
	return c, err
}

// blockingDial connects to a socket. It waits in connect(2) while the backlog is full, whereas net.Dial fails then.
func blockingDial(path string) (net.Conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

// binaryForAll returns a copy of the program that every user can run.
func binaryForAll(t *testing.T) string {
	t.Helper()
	q := newQueue(t, "")
	if err := os.Chmod(q.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return install(q, q.bin, q.dir)
}
