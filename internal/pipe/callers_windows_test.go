package pipe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/windows"
)

// Twenty concurrent clients each get the answer to their own request.
func TestConcurrentClientsGetTheirOwnReplies(t *testing.T) {
	l := listenOnTestPipe(t, OwnerOnlySecurityDescriptor())
	var serving, calling sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				io.Copy(c, c)
			})
		}
	})
	for i := range 20 {
		calling.Go(func() {
			c, err := Dial(t.Context(), testPipeName(t))
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(20 * time.Second))
			in := bufio.NewReader(c)
			for k := range 20 {
				want := fmt.Sprintf("%d of %d\n", k, i)
				io.WriteString(c, want)
				if got, err := in.ReadString('\n'); got != want {
					t.Errorf("got %q, %v, want %q", got, err, want)
					return
				}
			}
		})
	}
	calling.Wait()
	l.Close()
	serving.Wait()
}

// Every client gets its own reply, even while the garbage collector runs continuously, stacks move, and other
// listeners open and close.
func TestTenThousandClientsGetTheirOwnReplies(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	l := listenOnTestPipe(t, OwnerOnlySecurityDescriptor())
	var all sync.WaitGroup
	go func() { // this goroutine ends when the listener is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	done := make(chan struct{})
	var listeners sync.WaitGroup
	listeners.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			other, err := Listen(fmt.Sprintf("%s-%d", testPipeName(t), i), OwnerOnlySecurityDescriptor())
			if err != nil {
				t.Error(err)
				return
			}
			other.Close()
		}
	})
	const callers, each = 8, 1250
	for range callers {
		all.Go(func() {
			for range each {
				c, err := Dial(t.Context(), testPipeName(t))
				if err != nil {
					t.Error(err)
					return
				}
				c.SetDeadline(time.Now().Add(30 * time.Second))
				said := make([]byte, 4)
				if _, err := c.Write([]byte("said")); err != nil {
					t.Error(err)
				}
				if _, err := io.ReadFull(c, said); err != nil || string(said) != "said" {
					t.Errorf("got %q, %v", said, err)
				}
				c.Close()
			}
		})
	}
	all.Wait()
	close(done)
	listeners.Wait()
}

// After Listen has returned, clients can connect and send data before the server calls Accept. The server can
// read that data later.
func TestClientsConnectBeforeAcceptIsCalled(t *testing.T) {
	l := listenOnTestPipe(t, OwnerOnlySecurityDescriptor())
	for i := range 3 {
		c, err := Dial(t.Context(), testPipeName(t))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := fmt.Fprint(c, i); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		b := make([]byte, 10)
		c.SetDeadline(time.Now().Add(5 * time.Second))
		if n, err := c.Read(b); string(b[:n]) != fmt.Sprint(i) {
			t.Errorf("caller %d said %q, %v", i, b[:n], err)
		}
	}
}

// If a server does not accept connections, Dial returns at the deadline of its context.
func TestDialEndsAtDeadlineWithoutAccept(t *testing.T) {
	listenOnTestPipe(t, OwnerOnlySecurityDescriptor())
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	// Without a call of Accept, this number of clients can connect: acceptBacklog clients, one client that acceptClients
	// has accepted but cannot queue, and one client of the next pipe instance.
	for range acceptBacklog + 2 {
		c, err := Dial(t.Context(), testPipeName(t))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if _, err := Dial(ctx, testPipeName(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// For clients that Windows cannot identify yet, IdentifyClient must read the first bytes. It does this for at most
// maxUnidentifiedClients clients at the same time. For each further client it returns errTooManyUnidentifiedClients.
func TestUnidentifiedClientsAreLimited(t *testing.T) {
	real := impersonatePipeClient
	defer func() { impersonatePipeClient = real }()
	impersonatePipeClient = func(windows.Handle) error { return windows.ERROR_CANNOT_IMPERSONATE }
	_, server := connectedPipePair(t)
	for range maxUnidentifiedClients {
		server.(*conn).identificationSlots <- struct{}{}
	}
	if _, err := IdentifyClient(server); !errors.Is(err, errTooManyUnidentifiedClients) {
		t.Errorf("got %v", err)
	}
}
