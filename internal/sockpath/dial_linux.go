package sockpath

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

// cancelCheckInterval is the interval at which Dial checks whether its context has been cancelled.
const cancelCheckInterval = 250 * time.Millisecond

// Dial connects to a socket. While the socket's backlog is full, Dial waits until ctx ends or fullBacklogTimeout
// has passed.
//
// Dial waits in a blocking connect(2): the kernel wakes it when the server accepts a connection. If another process
// connects in a loop, a client that polled instead would find the backlog full nearly every time.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	deadline := time.Now().Add(fullBacklogTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	for !errors.Is(ctx.Err(), context.Canceled) {
		most := min(time.Until(deadline), cancelCheckInterval)
		wait := syscall.NsecToTimeval(int64(max(most, time.Millisecond))) // the kernel treats 0 as "no limit"
		if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &wait); err != nil {
			return nil, os.NewSyscallError("setsockopt", err)
		}
		switch err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: path}); err {
		case nil:
			return net.FileConn(f)
		case syscall.EAGAIN, syscall.EINTR:
		default:
			return nil, os.NewSyscallError("connect", err)
		}
		if !time.Now().Before(deadline) {
			return nil, ErrBacklogFull
		}
	}
	return nil, ctx.Err()
}
