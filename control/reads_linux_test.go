package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// startAnsweringServer starts a server that answers each request with resultJSON. It calls onRequest with the number of
// the connection, from 1. If onRequest returns false, the server closes the connection after the answer. When the first
// connection is closed, the server closes the channel closed.
func startAnsweringServer(
	t *testing.T, resultJSON string, onRequest func(connNumber int) (keepOpen bool),
) (socketPath string, firstConnClosed chan struct{}) {
	t.Helper()
	socketPath, firstConnClosed = tempSocketPath(t), make(chan struct{})
	l, err := net.Listen("unix", socketPath)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { // this goroutine ends when the listener is closed
		for n := 1; ; n++ {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // this goroutine ends when the connection is closed
				in := bufio.NewReader(nc)
				for keepOpen := true; keepOpen; {
					line, err := in.ReadString('\n')
					if err != nil {
						break
					}
					var id int
					fmt.Sscanf(line, `{"jsonrpc":"2.0","id":%d,`, &id)
					keepOpen = onRequest(n)
					fmt.Fprintf(nc, `{"jsonrpc":"2.0","id":%d,"result":%s}`+"\n", id, resultJSON)
				}
				if nc.Close(); n == 1 {
					close(firstConnClosed)
				}
			}()
		}
	}()
	return socketPath, firstConnClosed
}

// A caller that waits for a single answer reads from the connection itself. A separate goroutine would need another
// thread, which makes a program that has just started slower.
func TestCallForOneAnswerStartsNoGoroutine(t *testing.T) {
	var reading atomic.Int64
	path, _ := startAnsweringServer(t, `{"id":"7","seq":7,"duplicate":true,"unenforced":["cpus"]}`, func(int) bool {
		stacks := make([]byte, 1<<20)
		reading.Add(int64(strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "(*clientConn).readAll.")))
		return true
	})
	c := NewClient(path)
	defer c.Close()
	got, err := c.Enqueue(context.Background(), EnqueueParams{})
	if err != nil || !reflect.DeepEqual(got, EnqueueResult{JobID: "7", JobSeq: 7, AlreadyExisted: true,
		UnenforcedLimits: []string{"cpus"}}) {
		t.Fatalf("%+v, %v", got, err)
	}
	if n := reading.Load(); n != 0 {
		t.Errorf("%d goroutines read from the connection", n)
	}
}

// If the service has closed the connection since the last request, the client reconnects before it sends the next
// request. Therefore even a request that must not be repeated succeeds.
func TestClientReplacesClosedConnection(t *testing.T) {
	path, closed := startAnsweringServer(t, "{}", func(connection int) bool { return connection > 1 })
	c := NewClient(path)
	defer c.Close()
	if _, err := c.Hello(context.Background(), HelloParams{}); err != nil {
		t.Fatal(err)
	}
	<-closed
	if _, err := c.KillJobs(context.Background(), JobKillParams{}); err != nil {
		t.Errorf("kill after the connection had ended: %v", err)
	}
}

// Each of several concurrent calls on one connection gets its own answer, whichever goroutine reads it, and
// whether or not the call can be cancelled.
func TestConcurrentCallsShareAConnection(t *testing.T) {
	path, _ := startAnsweringServer(t, "{}", func(int) bool { return true })
	c := NewClient(path)
	defer c.Close()
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			ctx, cancel := context.Background(), func() {}
			if i%2 == 0 {
				ctx, cancel = context.WithCancel(ctx)
			}
			defer cancel()
			for range 50 {
				if _, err := c.Hello(ctx, HelloParams{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// If the service has closed the connection, the client closes its end before it connects again.
func TestClientClosesConnectionBeforeReconnecting(t *testing.T) {
	path, _ := startAnsweringServer(t, "{}", func(int) bool { return false })
	c := NewClient(path)
	defer c.Close()
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	var before int
	for i := range 20 {
		if _, err := c.Hello(context.Background(), HelloParams{}); err != nil {
			t.Fatal(err)
		}
		if i == 4 {
			before = open()
		}
	}
	if now := open(); now > before+5 { // the service may not have closed all connections yet
		t.Errorf("%d descriptors are open after 20 connections, %d after 5", now, before)
	}
}

// If a caller abandons a stream while more pieces arrive, the next request of the client is still answered.
func TestAbandonedStreamDelaysNoOtherCall(t *testing.T) {
	path := tempSocketPath(t)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // this goroutine ends when the listener is closed
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // this goroutine ends when the connection is closed
				defer nc.Close()
				in := bufio.NewReader(nc)
				for {
					line, err := in.ReadString('\n')
					if err != nil {
						return
					}
					var id int
					fmt.Sscanf(line, `{"jsonrpc":"2.0","id":%d,`, &id)
					for strings.Contains(line, `"logs"`) {
						if _, err := fmt.Fprintf(nc, `{"jsonrpc":"2.0","method":"stream","params":{"id":%d,"value":{"text":"more"}}}`+
							"\n", id); err != nil {
							return
						}
					}
					fmt.Fprintf(nc, `{"jsonrpc":"2.0","id":%d,"result":{}}`+"\n", id)
				}
			}()
		}
	}()
	c := NewClient(path)
	defer c.Close()
	ctx, leave := context.WithCancel(context.Background())
	if _, err := c.StreamOutput(ctx, JobOutputParams{ID: "1", Follow: true},
		func(OutputPiece) error { leave(); <-ctx.Done(); return nil }); !errors.Is(err, context.Canceled) {
		t.Fatalf("the stream ended with %v", err)
	}
	asked := make(chan error, 1)
	go func() { // this goroutine ends when the request is answered
		_, err := c.Hello(context.Background(), HelloParams{})
		asked <- err
	}()
	select {
	case err := <-asked:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the next request is not answered")
	}
}
