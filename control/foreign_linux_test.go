package control

import (
	"bufio"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/queue"
)

// otherUserUID is the uid under which these tests run another user's server. No other process of the tests has this
// uid.
const otherUserUID = 61234

// listenAs creates a socket as the user with this uid. Clients see the user who called listen(2) as the user who
// runs the server. Only root can act as another user.
func listenAs(t *testing.T, uid int, path string) *net.UnixListener {
	t.Helper()
	var l net.Listener
	var err error
	var wg sync.WaitGroup
	wg.Go(func() {
		if uid != os.Geteuid() {
			runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
			id := uintptr(uid)
			// use the raw system call, which affects only this thread: Go's own function changes the uid of all threads
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, id, id, id); errno != 0 {
				err = errno
				return
			}
		}
		l, err = net.Listen("unix", path)
	})
	wg.Wait()
	if err != nil {
		t.Fatalf("listen as uid %d: %v", uid, err)
	}
	t.Cleanup(func() { l.Close() })
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.(*net.UnixListener).SetDeadline(time.Now().Add(10 * time.Second))
	return l.(*net.UnixListener)
}

// acceptConnAndReadLine accepts one connection, reads one line, calls beforeClose and closes the connection. If the
// connection ends within the line, acceptConnAndReadLine returns the part that has arrived.
func acceptConnAndReadLine(l net.Listener, beforeClose func() error) (line string, err error) {
	c, err := l.Accept()
	if err != nil {
		return "", err
	}
	defer c.Close()
	line, _ = bufio.NewReader(c).ReadString('\n') // a connection that ends without a line is a valid result
	return line, beforeClose()
}

// When a client reconnects, it checks again which user runs the server. If another user runs the new server, the client
// sends nothing and returns an error with the uid of that user. If the client's own user runs the new server, the
// client repeats its request.
func TestClientSendsNothingToAnotherUsersServer(t *testing.T) {
	uids := []int{os.Geteuid()}
	if os.Geteuid() == 0 { // only root can act as another user
		uids = append(uids, otherUserUID)
	}
	for _, uid := range uids {
		dir := worldWritableDir(t)
		path, other := filepath.Join(dir, "s"), filepath.Join(dir, "other")
		first, second := listenAs(t, os.Geteuid(), path), listenAs(t, uid, other)
		var servers sync.WaitGroup
		var before, after string
		servers.Go(func() {
			var gone, taken error
			before, gone = acceptConnAndReadLine(first, func() error { return os.Rename(other, path) })
			after, taken = acceptConnAndReadLine(second, func() error { return nil })
			if err := errors.Join(gone, taken); err != nil {
				t.Errorf("uid %d: %v", uid, err)
			}
		})
		_, err := newTestClient(t, path).Hello(t.Context(), HelloParams{})
		servers.Wait()
		if !strings.Contains(before, `"hello"`) {
			t.Errorf("the first server received %q, want a hello request", before)
		}
		if uid == os.Geteuid() {
			if after != before {
				t.Errorf("the server of uid %d received %q, want the request again", uid, after)
			}
			continue
		}
		if after != "" {
			t.Errorf("the server of uid %d received %q, want nothing", uid, after)
		}
		if !errors.Is(err, queue.ErrDenied) || !strings.Contains(err.Error(), path) ||
			!strings.Contains(err.Error(), strconv.Itoa(uid)) {
			t.Errorf("got %v, want %v with the socket and uid %d", err, queue.ErrDenied, uid)
		}
	}
}

// worldWritableDir returns a directory in which every user may create a socket.
func worldWritableDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "open")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}
