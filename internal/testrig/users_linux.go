package testrig

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

// Person is a user for tests, with a uid and a gid. An account with this uid need not exist.
type Person struct {
	Name        string
	AccessRight string
	Uid         int
	Gid         int // 0 means that the gid equals Uid
	Groups      []uint32
}

// These are the users of the tests, with the rights that the settings in AllPersonsAccessSettings give them.
var (
	Outsider   = Person{Name: "outsider", AccessRight: "none", Uid: 61240}
	Reader     = Person{Name: "reader", AccessRight: "read", Uid: 61241}
	Alice      = Person{Name: "alice", AccessRight: "submit", Uid: 61242}
	Bob        = Person{Name: "bob", AccessRight: "submit", Uid: 61243, Groups: []uint32{61299, 61298}}
	Operator   = Person{Name: "operator", AccessRight: "operate", Uid: 61244, Groups: []uint32{61297}}
	Admin      = Person{Name: "admin", AccessRight: "admin", Uid: 61245}
	AllPersons = []Person{Outsider, Reader, Alice, Bob, Operator, Admin}
)

// AllPersonsAccessSettings contains settings that give each user in AllPersons the right in the field AccessRight.
const AllPersonsAccessSettings = "socket_mode = \"0666\"\n[access]\nread = [61241, \"61244\"]\nsubmit = [\"61242\", " +
	"\"@61298\"]\noperate = [\"@61297\"]\nadmin = [\"61245\"]\n"

// accessRightsInOrder lists the rights. Each right includes those before it.
var accessRightsInOrder = []string{"none", "read", "submit", "operate", "admin"}

// HasRight reports whether the person has a right. A higher right includes all lower ones.
func (p Person) HasRight(right string) bool {
	return slices.Index(accessRightsInOrder, p.AccessRight) >= slices.Index(accessRightsInOrder, right)
}

// StartSharedQueue starts a service to which every user can connect, with the given settings. It skips the test
// unless root runs the test, because only root can act as several users.
func StartSharedQueue(t *testing.T, settings string, args ...string) *Harness {
	t.Helper()
	skip.UnlessRoot(t, "needs root to act for several users; "+
		".ci/run runs it as root, and the tests of control cover the table of rights")
	t.Parallel()
	q := NewHarness(t, "")
	q.ClientPath = InstallPrograms(q, q.ClientPath, q.StateDir)
	if err := os.Chmod(q.StateDir, 0o755); err != nil {
		t.Fatal(err)
	}
	q.WriteFile("queuectl.toml", settings)
	q.StartService(args...)
	return q
}

// RunAs runs a queuectl command as a person.
func (q *Harness) RunAs(person Person, args ...string) CommandResult {
	q.Helper()
	return RunCommand(q, CommandAs(q.CLICommand(args...), person))
}

// CommandAs changes cmd so that it runs as a person, and returns cmd.
func CommandAs(cmd *exec.Cmd, person Person) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(person.Uid),
		Gid: uint32(cmp.Or(person.Gid, person.Uid)), Groups: person.Groups}}
	return cmd
}

// MustRunAs runs a queuectl command as a person, checks that it succeeds and returns its output.
func (q *Harness) MustRunAs(person Person, args ...string) string {
	q.Helper()
	r := q.RunAs(person, args...)
	if r.ExitCode != 0 {
		q.Fatalf("%s: queuectl %v: %+v", person.Name, args, r)
	}
	return strings.TrimSpace(r.Stdout)
}

// DialAs connects to the service as a person.
func (q *Harness) DialAs(person Person) *ServiceConn {
	q.Helper()
	c, err := ConnectAs(q.StateDir, person)
	if err != nil {
		q.Fatal(err)
	}
	q.Cleanup(func() { c.Close() })
	return &ServiceConn{q, c, bufio.NewReaderSize(c, 1<<20), 0}
}

// ConnectAs connects to the service that has the given state directory, as a person. The kernel reports the ids of that
// person to the service for the whole connection. While the backlog of the socket is full, ConnectAs waits, as queuectl
// does.
func ConnectAs(stateDir string, person Person) (c net.Conn, err error) {
	var wg sync.WaitGroup
	wg.Go(func() {
		// Never unlock the thread, so that it ends with this goroutine.
		runtime.LockOSThread()
		// Append one element, which is not passed to the kernel. So groups[0] exists even if the user has no groups.
		id, groups := uintptr(person.Uid), append(slices.Clone(person.Groups), 0)
		for _, call := range [][4]uintptr{ // change the ids of this thread only
			{unix.SYS_SETGROUPS, uintptr(len(person.Groups)), uintptr(unsafe.Pointer(&groups[0])), 0},
			{unix.SYS_SETRESGID, id, id, id}, {unix.SYS_SETRESUID, id, id, id},
		} {
			if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
				err = errno
				return
			}
		}
		runtime.KeepAlive(groups)
		c, err = blockingDial(filepath.Join(stateDir, SocketName))
	})
	wg.Wait()
	return c, err
}

// blockingDial connects to a socket. While the backlog of the socket is full, it waits in connect(2), whereas
// net.Dial would return an error.
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
