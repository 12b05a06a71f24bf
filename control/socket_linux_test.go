package control

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// fake is an API whose show fails as it is told to; nothing else is called.
type fake struct {
	crowded  func() // the server's, unless nil
	patience *time.Duration
	API
	fail error
	told atomic.Int64 // events
}

func (f *fake) Show(context.Context, Show) (JobDetail, error) { return JobDetail{}, f.fail }
func (f *fake) Hello(context.Context, HelloParams) (Hello, error) {
	return Hello{Version: "fake"}, nil
}
func (f *fake) Events(_ context.Context, _ Events, each func(Event) error) (EventsEnd, error) {
	for range 1000 {
		if err := each(Event{ID: strings.Repeat("x", 4096)}); err != nil {
			return EventsEnd{}, err
		}
		f.told.Add(1)
	}
	return EventsEnd{Last: 1000}, nil
}
func (f *fake) Enqueue(context.Context, Enqueue) (Enqueued, error) { panic("as a mistake would") }

// open is a gate that lets everybody do everything.
type open struct{}

func (open) Right(*Peer) Right                 { return Admin }
func (open) Refuse(*Peer, string, Right) error { return queue.ErrDenied }

// serve runs a server of an API on a socket of its own.
func serve(t *testing.T, api API) (socket string) {
	t.Helper()
	_, socket = run(t, api)
	return socket
}

// ownerOnly lets the socket's owner in, and root.
var ownerOnly = Entry{Mode: 0o600, GID: -1}

func run(t *testing.T, api API) (server *Server, socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := Listen(socket, ownerOnly)
	if err != nil {
		t.Fatal(err)
	}
	many := func() int { return 100 }
	gate := Gate(open{})
	if g, ok := api.(Gate); ok {
		gate = g
	}
	server = NewServer(api, Limits{many, many}, gate, slog.New(slog.DiscardHandler))
	if f, ok := api.(*fake); ok && f.crowded != nil {
		server.Crowded = f.crowded
	}
	if f, ok := api.(*fake); ok && f.patience != nil {
		server.Patience = *f.patience
	}
	ctx, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := server.Run(ctx, l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		done.Wait()
	})
	return server, socket
}

func client(t *testing.T, socket string) *Client {
	c := NewClient(socket)
	t.Cleanup(func() { c.Close() })
	return c
}

// An error is the same on both sides of the socket: its code, field, place and
// words.
func TestErrorsKeepTheirIdentityAcrossTheSocket(t *testing.T) {
	api := &fake{}
	c := client(t, serve(t, api))
	for _, row := range Failures {
		sent := &queue.Error{Code: row.Code, Field: "f", Index: 3, Message: "the words"}
		api.fail = sent
		_, err := c.Show(t.Context(), Show{ID: "a"})
		var got *queue.Error
		if !errors.As(err, &got) || *got != *sent || !errors.Is(err, &queue.Error{Code: row.Code}) {
			t.Errorf("%s: got %+v, want %+v", row.Code, err, sent)
		}
	}
	if _, err := c.Enqueue(t.Context(), Enqueue{}); !errors.Is(err, queue.ErrInternal) || strings.Contains(err.Error(), "mistake") {
		t.Errorf("a panic: got %v, want internal without its words", err)
	}
	if h, err := c.Hello(t.Context(), HelloParams{}); err != nil || h.Version != "fake" {
		t.Errorf("after a panic: got %+v, %v", h, err)
	}
	if _, err := c.Show(t.Context(), Show{ID: Name(strings.Repeat("x", MaxLine))}); !errors.Is(err, queue.ErrTooLarge) {
		t.Errorf("a request that is too long: got %v", err)
	}
}

// The server tells of requests that are not alone, and of no others.
func TestServerTellsWhenManyAsk(t *testing.T) {
	var told atomic.Int64
	socket := serve(t, &fake{crowded: func() { told.Add(1) }})
	one, other := client(t, socket), client(t, socket)
	ask := func(c *Client, want int64, why string) {
		t.Helper()
		if _, err := c.Hello(t.Context(), HelloParams{}); err != nil {
			t.Fatal(err)
		}
		if n := told.Swap(0); n != want {
			t.Errorf("%s: told %d times, want %d", why, n, want)
		}
	}
	ask(one, 0, "one client")
	ask(one, 0, "the same again")
	ask(other, 1, "a second one")
	ask(one, 1, "the first, while the second is there")
	other.Close()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if one.Hello(t.Context(), HelloParams{}); told.Swap(0) == 0 {
			return
		}
	}
	t.Error("still told after the second has gone")
}

// A line that is too long, or no JSON, is answered and ends the connection.
func TestBadLinesEndTheConnection(t *testing.T) {
	socket := serve(t, &fake{})
	for code, line := range map[string]string{"too_large": strings.Repeat("x", MaxLine+64<<10), "parse": "{]\n"} {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		go c.Write([]byte(line)) // ends when it is taken or the connection is closed
		in := bufio.NewReader(c)
		answer, err := in.ReadString('\n')
		if err != nil || !strings.Contains(answer, `"id":null`) || !strings.Contains(answer, `"code":"`+code+`"`) {
			t.Errorf("%s: got %q, %v", code, answer, err)
		}
		if _, err := in.ReadByte(); err == nil {
			t.Errorf("%s: the connection goes on", code)
		}
		c.Close()
	}
}

// An answer that is longer than a line may be is refused by the client.
func TestClientBoundsAnswers(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := Listen(socket, ownerOnly)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var server sync.WaitGroup
	defer server.Wait()
	server.Go(func() {
		for range 2 { // the client repeats once
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte(strings.Repeat("x", MaxLine+2)))
			c.Close()
		}
	})
	if _, err := client(t, socket).Hello(t.Context(), HelloParams{}); !errors.Is(err, queue.ErrTooLarge) {
		t.Errorf("got %v, want %v", err, queue.ErrTooLarge)
	}
}

// A socket left over from a crash is replaced, a live one and another file are
// refused and left, and so is a path that no socket can have.
func TestListenReplacesOnlyTheDead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	dead, err := Listen(path, ownerOnly)
	if err != nil {
		t.Fatal(err)
	}
	dead.Close() // the file stays, as after a crash
	if _, err := os.Lstat(path); err != nil {
		t.Fatal(err)
	}
	live, err := Listen(path, ownerOnly)
	if err != nil {
		t.Fatalf("a dead socket: %v", err)
	}
	defer live.Close()
	if second, err := Listen(path, ownerOnly); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a live socket: got %v, %v, want refused", second, err)
	}
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(file, ownerOnly); err == nil {
		t.Error("a file was replaced by a socket")
	}
	if raw, err := os.ReadFile(file); err != nil || string(raw) != "x" {
		t.Errorf("the file: %q, %v", raw, err)
	}
	deep := t.TempDir()
	longest := filepath.Join(deep, strings.Repeat("x", MaxSocketPath-len(deep)-1))
	l, err := Listen(longest, ownerOnly)
	if err != nil {
		t.Fatalf("the longest path: %v", err)
	}
	if c, err := net.Dial("unix", longest); err != nil {
		t.Errorf("the longest path: %v", err)
	} else {
		c.Close()
	}
	l.Close()
	if _, err := Listen("/"+strings.Repeat("x", MaxSocketPath), ownerOnly); !errors.Is(err, queue.ErrInvalid) || !strings.Contains(err.Error(), "107") {
		t.Errorf("a long path: got %v, want invalid and the limit", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".s*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// At no moment can others connect, whatever the umask: a socket that can be
// reached has the mode 0600.
func TestSocketIsNeverOpenToOthers(t *testing.T) {
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
					t.Errorf("%s can be entered by others: %o", h, info.Mode().Perm())
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
		l, err := Listen(path, ownerOnly)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
	close(stop)
	watcher.Wait()
	if seen == 0 {
		t.Error("the socket was never seen")
	}
}

// The kernel says who is at the other end, and no service is an error that says
// so.
func TestWhoIsThere(t *testing.T) {
	socket := serve(t, &fake{})
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if p, err := PeerOf(c); err != nil || p.UID != os.Geteuid() || p.PID != os.Getpid() {
		t.Errorf("got %+v, %v", p, err)
	}
	if err := client(t, socket+"x").Connect(t.Context()); !errors.Is(err, ErrUnreachable) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want %v", err, ErrUnreachable)
	}
}

// A stream whose reader pauses longer than the server has patience ends; where that is
// without end, all of it comes.
func TestPatienceWithAReader(t *testing.T) {
	for patience, whole := range map[time.Duration]bool{20 * time.Millisecond: false, 0: true} {
		api := &fake{patience: &patience}
		c, err := net.Dial("unix", serve(t, api))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte(`{"jsonrpc":"2.0","id":1,"method":"events"}` + "\n")); err != nil {
			t.Fatal(err)
		}
		still := 0
		for before := int64(-1); still < 20; time.Sleep(5 * time.Millisecond) { // until it has waited for long
			now := api.told.Load()
			if still++; now != before || now == 0 {
				before, still = now, 0
			}
		}
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		raw, err := io.ReadAll(io.LimitReader(c, 1000*4096))
		if (len(raw) == 1000*4096) != whole {
			t.Errorf("patience %v: %d bytes came, %v", patience, len(raw), err)
		}
	}
}
