package control

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// speaker is a service that answers each request with a result. Once asked says no more, it
// closes the connection, and then what it returns.
func speaker(t *testing.T, result string, asked func(connection int) (more bool)) (path string, closed chan struct{}) {
	t.Helper()
	path, closed = tempSocket(t), make(chan struct{})
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { // ends with the listener
		for n := 1; ; n++ {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection
				in := bufio.NewReader(nc)
				for more := true; more; {
					line, err := in.ReadString('\n')
					if err != nil {
						break
					}
					var id int
					fmt.Sscanf(line, `{"jsonrpc":"2.0","id":%d,`, &id)
					more = asked(n)
					fmt.Fprintf(nc, `{"jsonrpc":"2.0","id":%d,"result":%s}`+"\n", id, result)
				}
				if nc.Close(); n == 1 {
					close(closed)
				}
			}()
		}
	}()
	return path, closed
}

// Who asks one thing and waits reads the answer itself: a goroutine more is a thread more in
// a program that has just begun.
func TestOneQuestionTakesNoGoroutine(t *testing.T) {
	var reading atomic.Int64
	path, _ := speaker(t, `{"id":"7","seq":7,"duplicate":true,"unenforced":["cpus"]}`, func(int) bool {
		stacks := make([]byte, 1<<20)
		reading.Add(int64(strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "(*clientConn).readOn.")))
		return true
	})
	c := NewClient(path)
	defer c.Close()
	got, err := c.Enqueue(context.Background(), Enqueue{})
	if err != nil || !reflect.DeepEqual(got, Enqueued{ID: "7", Seq: 7, Duplicate: true, Unenforced: []string{"cpus"}}) {
		t.Fatalf("%+v, %v", got, err)
	}
	if n := reading.Load(); n != 0 {
		t.Errorf("%d goroutines read for it", n)
	}
}

// A connection that the service has closed between two requests is made anew before the
// second is sent, so that also what may not be repeated is carried out.
func TestAClosedConnectionIsNotAskedAgain(t *testing.T) {
	path, closed := speaker(t, "{}", func(connection int) bool { return connection > 1 })
	c := NewClient(path)
	defer c.Close()
	if _, err := c.Hello(context.Background(), HelloParams{}); err != nil {
		t.Fatal(err)
	}
	<-closed
	if _, err := c.Kill(context.Background(), Kill{}); err != nil {
		t.Errorf("kill after the connection had ended: %v", err)
	}
}

// Many ask at once on one connection, some of them with an end: each gets its own answer,
// whoever reads it.
func TestManyAskOnOneConnection(t *testing.T) {
	path, _ := speaker(t, "{}", func(int) bool { return true })
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
