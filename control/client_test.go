//go:build linux || windows

package control

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// If the server refuses a connection with an error and closes it, the client returns that error. This happens whether
// the client has not yet written its request, is writing the request, or is waiting for the answer.
func TestClientReadsReasonOfRejectedConnection(t *testing.T) {
	path := tempSocketPath(t)
	l := listen(t, path)
	go func() { // this goroutine ends when the listener is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, `{"jsonrpc":"2.0","id":null,"error":{"code":-32004,"message":"not you","data":{"code":"denied"}}}`+
				"\n")
			c.Close()
		}
	}()
	for i := range 300 {
		c := NewClient(path)
		ask := func() error { _, err := c.Hello(t.Context(), HelloParams{}); return err }
		if i%2 == 0 {
			// the client does not repeat the method kill
			ask = func() error { _, err := c.KillJobs(t.Context(), JobKillParams{}); return err }
		}
		if err := ask(); !errors.Is(err, queue.ErrDenied) || err.Error() != "not you" {
			t.Fatalf("round %d: %v", i, err)
		}
		c.Close()
	}
}

// If the caller's function for the pieces of a stream returns an error, only that call ends, even if more
// pieces arrive. Other calls on the connection continue.
func TestStreamHandlerErrorEndsOnlyItsCall(t *testing.T) {
	path := tempSocketPath(t)
	l := listen(t, path)
	sent, served := make(chan struct{}), make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		in := bufio.NewReader(c)
		_, err = in.ReadString('\n')
		for n := range 200 { // send more pieces than the channel of a call can hold
			_, failed := fmt.Fprintf(c, `{"jsonrpc":"2.0","method":"events","params":{"id":1,"value":{"seq":%d}}}`+"\n", n)
			err = errors.Join(err, failed)
		}
		close(sent)
		_, failed := in.ReadString('\n')
		_, failed2 := io.WriteString(c, `{"jsonrpc":"2.0","id":2,"result":{"version":"x"}}`+"\n")
		served <- errors.Join(err, failed, failed2)
	}()
	c := NewClient(path)
	defer c.Close()
	enough := errors.New("enough")
	_, err := c.StreamEvents(t.Context(), EventsParams{Follow: true}, func(Event) error {
		<-sent
		return enough
	})
	if !errors.Is(err, enough) {
		t.Errorf("the stream ended with %v", err)
	}
	if h, err := c.Hello(t.Context(), HelloParams{}); err != nil || h.Version != "x" {
		t.Errorf("the next request: %+v, %v", h, err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
