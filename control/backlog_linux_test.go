package control

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control/socket"
)

// connectNonblocking starts to connect to a socket and does not wait, like a program that floods the socket.
func connectNonblocking(path string) (fd int, err error) {
	fd, err = syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		syscall.Close(fd)
		return -1, err
	}
	return fd, nil
}

// fillListenBacklog connects until the socket's backlog is full. It returns the number of waiting connections.
func fillListenBacklog(t *testing.T, path string) (waitingConns int) {
	t.Helper()
	for {
		fd, err := connectNonblocking(path)
		if errors.Is(err, syscall.EAGAIN) {
			return waitingConns
		}
		if err != nil {
			t.Fatalf("connection %d: %v", waitingConns+1, err)
		}
		t.Cleanup(func() { syscall.Close(fd) })
		waitingConns++
	}
}

// At most 1,025 connections wait to be accepted: Linux allows one more than the backlog passed to listen(2).
func TestListenBacklogIsBounded(t *testing.T) {
	const want = 1024 + 1
	path := tempSocketPath(t)
	listen(t, path)
	if n := fillListenBacklog(t, path); n != want {
		t.Errorf("%d connections wait, want %d", n, want)
	}
}

// A client that finds the backlog full waits, and connects when the service has accepted a connection.
func TestClientWaitsWhileListenBacklogIsFull(t *testing.T) {
	path := tempSocketPath(t)
	l := listen(t, path)
	waiting := fillListenBacklog(t, path)
	var accepting sync.WaitGroup
	defer accepting.Wait()
	accepting.Add(1)
	time.AfterFunc(10*time.Millisecond, func() { // by then, the client has found the backlog full
		defer accepting.Done()
		for range waiting {
			nc, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			nc.Close()
		}
	})
	if err := newTestClient(t, path).Connect(t.Context()); err != nil {
		t.Errorf("got %v, want a connection", err)
	}
}

// If the backlog of the service is full, the client reports an overload. If it reported a stopped service
// instead, it would also start a second one.
func TestClientReportsFullBacklogAsOverload(t *testing.T) {
	path := tempSocketPath(t)
	listen(t, path)
	fillListenBacklog(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := newTestClient(t, path).Connect(ctx)
	if err != socket.ErrServiceOverloaded || errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v, want %v", err, socket.ErrServiceOverloaded)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newTestClient(t, path).Connect(cancelled); !errors.Is(err, context.Canceled) {
		t.Errorf("after a cancellation: got %v", err)
	}
	if second, err := socket.Listen(path, ownerOnlySocketPerms()); err == nil {
		second.Close()
		t.Error("the socket of an overloaded service was replaced")
	}
}

// A user who connects over and over without waiting does not prevent other users from connecting.
func TestClientsConnectDuringAConnectFlood(t *testing.T) {
	path := tempSocketPath(t)
	l := listen(t, path)
	fillListenBacklog(t, path)
	var others sync.WaitGroup
	defer others.Wait()
	defer l.Close()
	stop := make(chan struct{})
	defer close(stop)
	for range 4 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if fd, err := connectNonblocking(path); err == nil {
					syscall.Close(fd)
				}
			}
		})
	}
	others.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			nc.Close()
		}
	})
	for n := range 20 {
		c := NewClient(path)
		if err := c.Connect(t.Context()); err != nil {
			t.Fatalf("client %d: %v", n+1, err)
		}
		c.Close()
	}
}
