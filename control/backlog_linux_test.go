package control

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"
)

// connectNow connects to a socket without waiting, as a program that floods the socket does.
func connectNow(path string) (fd int, err error) {
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

// fillBacklog connects until no more connections can wait to be accepted, and returns their number.
func fillBacklog(t *testing.T, path string) (waiting int) {
	t.Helper()
	for {
		fd, err := connectNow(path)
		if errors.Is(err, syscall.EAGAIN) {
			return waiting
		}
		if err != nil {
			t.Fatalf("connection %d: %v", waiting+1, err)
		}
		t.Cleanup(func() { syscall.Close(fd) })
		waiting++
	}
}

// At most maxBacklog+1 connections wait to be accepted: Linux allows one more than the backlog of
// listen(2).
func TestBacklogIsBounded(t *testing.T) {
	own := listen(t, tempSocket(t))
	if n := fillBacklog(t, own.path); n != maxBacklog+1 {
		t.Errorf("%d connections wait, want %d", n, maxBacklog+1)
	}
}

// A client that finds the backlog full waits, and connects once there is room.
func TestClientWaitsForRoomInTheBacklog(t *testing.T) {
	l := listen(t, tempSocket(t))
	waiting := fillBacklog(t, l.path)
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
	if err := client(t, l.path).Connect(t.Context()); err != nil {
		t.Errorf("got %v, want a connection", err)
	}
}

// A service that accepts no connections is reported as overloaded and not as stopped. Otherwise the
// client would start a second service.
func TestFullBacklogIsAnOverload(t *testing.T) {
	l := listen(t, tempSocket(t))
	fillBacklog(t, l.path)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := client(t, l.path).Connect(ctx)
	if err != errOverloaded || errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v, want %v", err, errOverloaded)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := client(t, l.path).Connect(cancelled); !errors.Is(err, context.Canceled) {
		t.Errorf("after a cancellation: got %v", err)
	}
	if second, err := Listen(l.path, ownerOnly()); err == nil {
		second.Close()
		t.Error("the socket of an overloaded service was replaced")
	}
}

// A user who connects over and over without waiting does not keep other clients out.
func TestClientsConnectDuringAConnectFlood(t *testing.T) {
	l := listen(t, tempSocket(t))
	fillBacklog(t, l.path)
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
				if fd, err := connectNow(l.path); err == nil {
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
		c := NewClient(l.path)
		if err := c.Connect(t.Context()); err != nil {
			t.Fatalf("client %d: %v", n+1, err)
		}
		c.Close()
	}
}
