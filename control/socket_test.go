//go:build linux || windows

package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
)

// fakeAPI is an API whose ShowJob returns err. All methods without a definition below panic.
type fakeAPI struct {
	onConcurrencyLimit func()         // value for Server.OnConcurrencyLimit; nil leaves the default
	streamReadTimeout  *time.Duration // value for Server.StreamReadTimeout; nil leaves the default
	API
	showJobError   error        // error that ShowJob returns
	sentEventCount atomic.Int64 // number of events that the method StreamEvents has sent
}

func (f *fakeAPI) ShowJob(context.Context, JobShowParams) (JobDetail, error) {
	return JobDetail{}, f.showJobError
}
func (f *fakeAPI) Hello(context.Context, HelloParams) (HelloResult, error) {
	return HelloResult{Version: "fake"}, nil
}
func (f *fakeAPI) StreamEvents(_ context.Context, _ EventsParams, handleEvent func(Event) error) (EventStreamEnd,
	error) {
	for range 1000 {
		if err := handleEvent(Event{JobID: strings.Repeat("x", 4096)}); err != nil {
			return EventStreamEnd{}, err
		}
		f.sentEventCount.Add(1)
	}
	return EventStreamEnd{LastEventSeq: 1000}, nil
}
func (f *fakeAPI) Enqueue(context.Context, EnqueueParams) (EnqueueResult, error) {
	panic("as a bug would")
}

// allowAllAuthorizer is an Authorizer that lets every user do everything.
type allowAllAuthorizer struct{}

func (allowAllAuthorizer) CurrentRight(*Peer) Right                     { return RightAdmin }
func (allowAllAuthorizer) AdmitConnection(context.Context, *Peer) error { return nil }
func (allowAllAuthorizer) MissingRightError(*Peer, string, Right) error { return queue.ErrDenied }

// serveUntilTestEnds runs a server for an API and returns its socket.
func serveUntilTestEnds(t *testing.T, api API) (socketPath string) {
	t.Helper()
	_, socketPath = runServer(t, api)
	return socketPath
}

// runServer runs a server for an API until the test ends. If the API is also an Authorizer, it authorizes the
// users.
func runServer(t *testing.T, api API) (server *Server, socketPath string) {
	t.Helper()
	socketPath = tempSocketPath(t)
	l, err := socket.Listen(socketPath, ownerOnlySocketPerms())
	if err != nil {
		t.Fatal(err)
	}
	many := func() (all, user int) { return 100, 100 }
	gate := Authorizer(allowAllAuthorizer{})
	if g, ok := api.(Authorizer); ok {
		gate = g
	}
	server = NewServer(api, ConnectionLimits{many}, gate, NewUserLimits(), slog.New(slog.DiscardHandler))
	if f, ok := api.(*fakeAPI); ok && f.onConcurrencyLimit != nil {
		server.OnConcurrencyLimit = f.onConcurrencyLimit
	}
	if f, ok := api.(*fakeAPI); ok && f.streamReadTimeout != nil {
		server.StreamReadTimeout = *f.streamReadTimeout
	}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := server.Run(ctx, l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		wg.Wait()
	})
	return server, socketPath
}

// listen returns a listener for a server that the test implements itself.
func listen(t *testing.T, path string) *socket.Listener {
	t.Helper()
	l, err := socket.Listen(path, ownerOnlySocketPerms())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	l.SetDeadline(time.Now().Add(10 * time.Second))
	return l
}

// dial connects to the socket directly, without a Client.
func dial(t *testing.T, path string) net.Conn {
	t.Helper()
	c, err := socket.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newTestClient(t *testing.T, socketPath string) *Client {
	c := NewClient(socketPath)
	t.Cleanup(func() { c.Close() })
	return c
}

// An error has the same code, field, index and message on both sides of the socket.
func TestErrorsKeepCodeAndFieldAcrossSocket(t *testing.T) {
	api := &fakeAPI{}
	c := newTestClient(t, serveUntilTestEnds(t, api))
	for _, row := range ErrorCodes {
		sent := &queue.Error{Code: row.Code, Field: "f", BatchIndex: 3, Message: "the words"}
		api.showJobError = sent
		_, err := c.ShowJob(t.Context(), JobShowParams{ID: "a"})
		var got *queue.Error
		if !errors.As(err, &got) || *got != *sent || !errors.Is(err, &queue.Error{Code: row.Code}) {
			t.Errorf("%s: got %+v, want %+v", row.Code, err, sent)
		}
	}
	if _, err := c.Enqueue(t.Context(), EnqueueParams{}); !errors.Is(err, queue.ErrInternal) ||
		strings.Contains(err.Error(), "mistake") {
		t.Errorf("a panic: got %v, want the code internal without the panic's text", err)
	}
	if h, err := c.Hello(t.Context(), HelloParams{}); err != nil || h.Version != "fake" {
		t.Errorf("after a panic: got %+v, %v", h, err)
	}
	if _, err := c.ShowJob(t.Context(), JobShowParams{ID: JobID(strings.Repeat("x", MaxLineBytes))}); !errors.Is(err,
		queue.ErrTooLarge) {
		t.Errorf("a request that is too long: got %v", err)
	}
}

// The server calls OnConcurrencyLimit for concurrent requests and for concurrent connections, but not for
// consecutive requests on a single connection.
func TestServerReportsConcurrentRequests(t *testing.T) {
	var reports atomic.Int64
	socket := serveUntilTestEnds(t, &fakeAPI{onConcurrencyLimit: func() { reports.Add(1) }})
	one, other := newTestClient(t, socket), newTestClient(t, socket)
	ask := func(c *Client, want int64, why string) {
		t.Helper()
		if _, err := c.Hello(t.Context(), HelloParams{}); err != nil {
			t.Fatal(err)
		}
		if n := reports.Swap(0); n != want {
			t.Errorf("%s: OnConcurrencyLimit was called %d times, want %d", why, n, want)
		}
	}
	ask(one, 0, "one client")
	ask(one, 0, "the same client again")
	ask(other, 1, "a second client")
	ask(one, 1, "the first client while the second is connected")
	other.Close()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if one.Hello(t.Context(), HelloParams{}); reports.Swap(0) == 0 {
			return
		}
	}
	t.Error("OnConcurrencyLimit is still called after the second client has disconnected")
}

// If a line is too long or not JSON, the client gets an error, and the server closes the connection.
func TestInvalidLinesCloseTheConnection(t *testing.T) {
	socket := serveUntilTestEnds(t, &fakeAPI{})
	for code, line := range map[string]string{"too_large": strings.Repeat("x", MaxLineBytes+64<<10), "parse": "{]\n"} {
		c := dial(t, socket)
		go c.Write([]byte(line)) // ends when the server has read the line or closed the connection
		in := bufio.NewReader(c)
		answer, err := in.ReadString('\n')
		if err != nil || !strings.Contains(answer, `"id":null`) || !strings.Contains(answer, `"code":"`+code+`"`) {
			t.Errorf("%s: got %q, %v", code, answer, err)
		}
		if _, err := in.ReadByte(); err == nil {
			t.Errorf("%s: the connection was not closed", code)
		}
		c.Close()
	}
}

// A client that has closed its sending side still gets all answers. Then the server closes the connection.
func TestHalfClosedClientGetsAllAnswers(t *testing.T) {
	c := dial(t, serveUntilTestEnds(t, &fakeAPI{}))
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	const asked = 100
	var asking sync.WaitGroup
	defer asking.Wait()
	asking.Go(func() {
		for n := range asked {
			fmt.Fprintf(c, `{"jsonrpc":"2.0","id":%d,"method":"hello"}`+"\n", n)
		}
		if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Error(err)
		}
	})
	raw, err := io.ReadAll(c)
	if n := strings.Count(string(raw), `"version":"fake"`); n != asked || err != nil {
		t.Errorf("got %d answers, %v, want %d", n, err, asked)
	}
}

// The last line of a connection needs no newline if it is short. A long line without a newline is probably cut
// off, so the server rejects it without parsing it.
func TestLongLastLineNeedsItsNewline(t *testing.T) {
	socket := serveUntilTestEnds(t, &fakeAPI{})
	const request = `{"id":1,"method":"hello"}`
	for _, c := range []struct {
		bytes int
		want  string
	}{{len(request), `"version":"fake"`}, {uncountedBytesPerConn, `"version":"fake"`}, {uncountedBytesPerConn + 1,
		`ends without a newline`}} {
		nc := dial(t, socket)
		nc.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprint(nc, strings.Repeat(" ", c.bytes-len(request)), request)
		if err := nc.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(nc)
		if n := strings.Count(string(answer), "\n"); err != nil || n != 1 || !strings.Contains(string(answer), c.want) {
			t.Errorf("%d bytes: got %q, %v, want %s", c.bytes, answer, err, c.want)
		}
		nc.Close()
	}
}

// The client returns an error if an answer is longer than MaxLineBytes.
func TestClientRejectsTooLongAnswers(t *testing.T) {
	path := tempSocketPath(t)
	l, err := socket.Listen(path, ownerOnlySocketPerms())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var server sync.WaitGroup
	defer server.Wait()
	server.Go(func() {
		for range 2 { // the client repeats the request once
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte(strings.Repeat("x", MaxLineBytes+2)))
			c.Close()
		}
	})
	if _, err := newTestClient(t, path).Hello(t.Context(), HelloParams{}); !errors.Is(err, queue.ErrTooLarge) {
		t.Errorf("got %v, want %v", err, queue.ErrTooLarge)
	}
}

// The server learns the identity of the client from the kernel. If no service runs, the client returns
// ErrUnreachable.
func TestServerIdentifiesClient(t *testing.T) {
	d := &fakeAuthorizer{right: RightAdmin}
	socket := serveUntilTestEnds(t, d)
	if _, err := newTestClient(t, socket).ShowJob(t.Context(), JobShowParams{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	if p := d.showJobCallers[0]; p.UID != accounts.CurrentUserID() || p.PID != os.Getpid() {
		t.Errorf("the request came from %+v", p)
	}
	if err := newTestClient(t, socket+"x").Connect(t.Context()); !errors.Is(err, ErrUnreachable) ||
		!errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want %v", err, ErrUnreachable)
	}
}

// A stream ends if its client reads nothing for StreamReadTimeout. If StreamReadTimeout is 0, a client may read
// as slowly as it likes.
func TestStreamReadTimeoutEndsSlowStreams(t *testing.T) {
	for patience, whole := range map[time.Duration]bool{20 * time.Millisecond: false, 0: true} {
		api := &fakeAPI{streamReadTimeout: &patience}
		c := dial(t, serveUntilTestEnds(t, api))
		defer c.Close()
		if _, err := c.Write([]byte(`{"jsonrpc":"2.0","id":1,"method":"events"}` + "\n")); err != nil {
			t.Fatal(err)
		}
		still := 0
		// Wait until the server has sent no event for 100 ms, because the client does not read.
		for before := int64(-1); still < 20; time.Sleep(5 * time.Millisecond) {
			now := api.sentEventCount.Load()
			if still++; now != before || now == 0 {
				before, still = now, 0
			}
		}
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		raw, err := io.ReadAll(io.LimitReader(c, 1000*4096))
		if (len(raw) == 1000*4096) != whole {
			t.Errorf("patience %v: received %d bytes, %v", patience, len(raw), err)
		}
	}
}
