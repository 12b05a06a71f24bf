package socket

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// unusedTestUID is a uid that no process of the tests has.
const unusedTestUID = 61234

// setThreadCredentials changes the user and the groups of the calling thread only. The goroutine must be locked to the
// thread, and the thread must not be used for anything else afterwards.
func setThreadCredentials(uid, gid int, groups []uint32) error {
	none := uint32(0)
	list := unsafe.Pointer(&none)
	if len(groups) > 0 {
		list = unsafe.Pointer(&groups[0])
	}
	id, grp := uintptr(uid), uintptr(gid)
	for _, call := range [][4]uintptr{
		{unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(list), 0}, {unix.SYS_SETRESGID, grp, grp, grp},
		{unix.SYS_SETRESUID, id, id, id},
	} {
		if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
			return errno
		}
	}
	runtime.KeepAlive(groups)
	return nil
}

// PeerOf returns the user, the group and all supplementary groups that the client had when it connected, even if the
// client has changed them since then. If the test does not run as root, it can only test its own user.
func TestPeerOfReportsConnectingProcess(t *testing.T) {
	dir, err := os.MkdirTemp("", "open") // other users must be able to enter this directory; see Chmod below
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.SetDeadline(time.Now().Add(10 * time.Second))
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	own, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	cases := []Peer{{UID: os.Geteuid(), GID: os.Getegid(), Groups: own}}
	if os.Geteuid() == 0 {
		many := make([]int, 3*initialGroupCapacity)
		for i := range many {
			many[i] = 70000 + i
		}
		cases = append(cases, Peer{UID: unusedTestUID, GID: unusedTestUID + 1, Groups: []int{}},
			Peer{UID: unusedTestUID, GID: unusedTestUID, Groups: []int{5, unusedTestUID + 2}},
			Peer{UID: unusedTestUID, GID: 7, Groups: many})
	}
	for i, want := range cases {
		var dialed net.Conn
		var err error
		var thread sync.WaitGroup
		thread.Go(func() {
			if i > 0 {
				runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
				groups := make([]uint32, len(want.Groups))
				for k, g := range want.Groups {
					groups[k] = uint32(g)
				}
				err = setThreadCredentials(want.UID, want.GID, groups)
			}
			if err == nil {
				dialed, err = net.Dial("unix", path)
			}
		})
		thread.Wait()
		if err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, err = dialed.Write([]byte("x")) // this process has another identity than the client had when it connected
		got, failed := PeerOf(c)
		slices.Sort(got.Groups)
		slices.Sort(want.Groups)
		if err := errors.Join(err, failed); err != nil || got.UID != want.UID || got.GID != want.GID ||
			!slices.Equal(got.Groups, want.Groups) || got.PID != os.Getpid() {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
		dialed.Close()
		c.Close()
	}
	l.SetDeadline(time.Time{})
}

// IsClosedByPeer does not report a connection as closed when this process receives signals. The Go runtime sends many
// signals to its own process.
func TestIsClosedByPeerIgnoresSignals(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tempSocketPath(t), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	done := make(chan struct{})
	var signals sync.WaitGroup
	signals.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				unix.Kill(os.Getpid(), unix.SIGURG) // the runtime sends this signal to preempt a goroutine
			}
		}
	})
	for i := range 300_000 {
		if IsClosedByPeer(c) {
			t.Errorf("check %d says that the peer is gone", i)
			break
		}
	}
	close(done)
	signals.Wait()
}
