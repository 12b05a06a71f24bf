package socket

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
)

func tempSocketPath(t *testing.T) string { return filepath.Join(t.TempDir(), "s") }

// ownerOnlyPerms returns permissions that admit only the owner of the socket and root.
func ownerOnlyPerms() Perms { return Perms{Mode: 0o600, GID: -1} }

// Listen replaces a socket that a crashed service has left behind. If a service answers on the socket, or if
// another kind of file is at the path, or if the path is too long, Listen returns an error and changes nothing.
func TestListenReplacesOnlySocketsWithoutServer(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	dead, err := Listen(path, ownerOnlyPerms())
	if err != nil {
		t.Fatal(err)
	}
	dead.Close() // the socket's file remains, as after a crash
	if _, err := os.Lstat(path); err != nil {
		t.Fatal(err)
	}
	live, err := Listen(path, ownerOnlyPerms())
	if err != nil {
		t.Fatalf("a dead socket: %v", err)
	}
	defer live.Close()
	if second, err := Listen(path, ownerOnlyPerms()); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a live socket: got %v, %v, want refused", second, err)
	}
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(file, ownerOnlyPerms()); err == nil {
		t.Error("a file was replaced by a socket")
	}
	if raw, err := os.ReadFile(file); err != nil || string(raw) != "x" {
		t.Errorf("the file: %q, %v", raw, err)
	}
	deep := t.TempDir()
	longest := filepath.Join(deep, strings.Repeat("x", MaxPathLength-len(deep)-1))
	l, err := Listen(longest, ownerOnlyPerms())
	if err != nil {
		t.Fatalf("the longest path: %v", err)
	}
	if c, err := net.Dial("unix", longest); err != nil {
		t.Errorf("the longest path: %v", err)
	} else {
		c.Close()
	}
	l.Close()
	if _, err := Listen("/"+strings.Repeat("x", MaxPathLength), ownerOnlyPerms()); !errors.Is(err, queue.ErrInvalid) ||
		!strings.Contains(err.Error(), "107") {
		t.Errorf("a long path: got %v, want invalid and the limit", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".s*"))
	if err != nil || len(left) != 0 {
		t.Errorf("remaining files: %v, %v", left, err)
	}
}

// A new socket has the mode 0600, whatever the umask is, from the moment at which it can be reached. So other users can
// never connect.
func TestNewSocketNeverAdmitsOtherUsers(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	stop, seen := make(chan struct{}), 0
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for {
			info, err := os.Lstat(path)
			if err == nil {
				seen++
				if info.Mode().Perm() != 0o600 {
					t.Errorf("got mode %o, want 600", info.Mode().Perm())
				}
			}
			hidden, _ := filepath.Glob(filepath.Join(dir, ".s*"))
			for _, h := range hidden {
				if info, err := os.Lstat(h); err == nil && info.Mode().Perm()&0o077 != 0 {
					t.Errorf("other users can enter %s: mode %o", h, info.Mode().Perm())
				} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Error(err)
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for range 200 {
		l, err := Listen(path, ownerOnlyPerms())
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
	close(stop)
	watcher.Wait()
	if seen == 0 {
		t.Error("the socket was never found in its directory")
	}
}

// Listen removes temporary directories that killed processes have left behind. It does not remove other files
// with similar names.
func TestListenRemovesStaleDirectories(t *testing.T) {
	path := tempSocketPath(t)
	dir := filepath.Dir(path)
	old := time.Now().Add(-2 * staleTempDirAge)
	makeDir := func(name string, at time.Time, file string) {
		t.Helper()
		err := os.Mkdir(filepath.Join(dir, name), 0o700)
		if file == "s" {
			l, failed := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name, file), Net: "unix"})
			if failed != nil {
				t.Fatal(failed)
			}
			l.SetUnlinkOnClose(false)
			l.Close()
		} else if file != "" {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, name, file), nil, 0o600))
		}
		if err = errors.Join(err, os.Chtimes(filepath.Join(dir, name), at, at)); err != nil {
			t.Fatal(err)
		}
	}
	makeDir(".s1", old, "")
	makeDir(".s22", old, "s")
	makeDir(".s3", time.Now(), "")
	makeDir(".s4", old, "other")
	makeDir(".sx5", old, "")
	if err := os.WriteFile(filepath.Join(dir, ".s6"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(path, ownerOnlyPerms())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range left {
		names = append(names, e.Name())
	}
	if want := []string{".s3", ".s4", ".s6", ".sx5", filepath.Base(path)}; !slices.Equal(names, want) {
		t.Errorf("the remaining files are %q, want %q", names, want)
	}
}

// Connections that wait to be accepted are not lost when the socket is created again.
func TestRecreatedSocketKeepsWaitingConnections(t *testing.T) {
	path := tempSocketPath(t)
	s, err := Listen(path, ownerOnlyPerms())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 3 {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if bound, err := s.recreateIfRemoved(); !bound || err != nil {
		t.Fatal(bound, err)
	}
	last, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer last.Close()
	accepted := make(chan error)
	go func() {
		for range 4 {
			c, err := s.Accept()
			if err == nil {
				c.Close()
			}
			accepted <- err
		}
	}()
	for i := range 4 {
		select {
		case err := <-accepted:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("only %d of 4 connections were accepted", i)
		}
	}
}
