package top

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// fakeQueue is a queue with one running job. It supports only reading, and other calls panic.
type fakeQueue struct {
	control.API

	onFetch      func(n int) error                   // called for the nth fetch
	onReadOutput func(context.Context, string) error // called when the output of a job is read
	accessRight  control.Right

	fetchCount  atomic.Int64
	openClients sync.WaitGroup
}

func (f *fakeQueue) connect() Client {
	f.openClients.Add(1)
	return Client{API: f, Closer: closeFunc(sync.OnceFunc(f.openClients.Done))}
}

// closeFunc is a function that implements io.Closer.
type closeFunc func()

func (c closeFunc) Close() error {
	c()
	return nil
}

func (f *fakeQueue) Whoami(context.Context, control.NoParams) (control.WhoamiResult, error) {
	return control.WhoamiResult{User: "mira", Right: f.accessRight}, nil
}

func (f *fakeQueue) ReadOverviewScreen(context.Context, control.OverviewScreenParams) (control.OverviewScreen, error) {
	return testSnapshot(f.accessRight).screen, f.onFetch(int(f.fetchCount.Add(1)))
}

func (f *fakeQueue) StreamOutput(
	ctx context.Context, p control.JobOutputParams, _ func(control.OutputPiece) error,
) (control.OutputStreamEnd, error) {
	return control.OutputStreamEnd{}, f.onReadOutput(ctx, string(p.ID))
}

// runScreenWithKeys runs the screen with a fake queue until the screen ends. It returns the text that was
// written to the terminal.
func runScreenWithKeys(f *fakeQueue, keys io.Reader) (string, error) {
	var out bytes.Buffer
	o := Options{Connect: f.connect, AddNextStepToError: func(err error) error { return err }}
	err := runProgram(context.Background(), o, tea.WithInput(keys), tea.WithOutput(&out), tea.WithWindowSize(80, 24),
		tea.WithEnvironment([]string{"TERM=xterm"}))
	return out.String(), err
}

// After a panic, the terminal shows the main screen and its cursor again.
func TestPanicRestoresTerminal(t *testing.T) {
	f := &fakeQueue{accessRight: control.RightRead, onFetch: func(n int) error {
		if n > 2 { // the screen has been shown for a second
			panic("a mistake")
		}
		return nil
	}}
	in, typing := io.Pipe()
	defer typing.Close()
	out, err := runScreenWithKeys(f, in)
	if !errors.Is(err, tea.ErrProgramPanic) {
		t.Errorf("Run returned %v, want the panic", err)
	}
	entered, left := strings.LastIndex(out, "\x1b[?1049h"), strings.LastIndex(out, "\x1b[?1049l")
	if entered < 0 || left < entered || strings.LastIndex(out, "\x1b[?25h") < strings.LastIndex(out, "\x1b[?25l") {
		t.Errorf("Run wrote %q", out)
	}
}

// If the first fetch fails, Run returns the error before it writes to the terminal.
func TestRunReturnsErrorOfFirstFetch(t *testing.T) {
	refusal := &queue.Error{Code: queue.CodeDenied, Message: "no"}
	f := &fakeQueue{onFetch: func(int) error { return refusal }}
	if out, err := runScreenWithKeys(f, strings.NewReader("")); !errors.Is(err, refusal) || out != "" {
		t.Errorf("Run wrote %q and returned %v, want no output and the rejection", out, err)
	}
}

// When another job is selected, the screen stops reading the output of the previous one. At the end, all
// connections are closed.
func TestSelectionChangeStopsReadingPreviousOutput(t *testing.T) {
	type event struct{ what, id string }
	events := make(chan event)
	f := &fakeQueue{accessRight: control.RightAdmin, onFetch: func(int) error { return nil },
		onReadOutput: func(ctx context.Context, id string) error {
			events <- event{"begins", id}
			<-ctx.Done()
			events <- event{"ends", id}
			return ctx.Err()
		}}
	in, typing := io.Pipe()
	done := make(chan error)
	go func() { // this goroutine ends after the test has sent the key q
		_, err := runScreenWithKeys(f, in)
		done <- err
	}()
	var got []event
	take := func() {
		select {
		case e := <-events:
			got = append(got, e)
		case <-time.After(10 * time.Second):
			t.Fatalf("no event within 10 s after the events %v", got)
		}
	}
	take()
	io.WriteString(typing, "j")
	take()
	take()
	io.WriteString(typing, "q")
	take()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	f.openClients.Wait() // the test times out here if a client stays open
	first, second := event{"begins", "build"}, event{"begins", "train"}
	if !slices.Contains(got, event{"ends", "build"}) || got[0] != first || !slices.Contains(got, second) ||
		got[3] != (event{"ends", "train"}) {
		t.Errorf("the screen read the outputs %v", got)
	}
}

// If output arrives faster than it is displayed, only the newest maxUnreadOutputBytes are kept.
func TestUnreadOutputIsBounded(t *testing.T) {
	r := &outputReader{ctx: t.Context(), updateSignal: make(chan struct{}, 1)}
	for range 100 {
		r.addPiece(control.OutputPiece{Stream: "stdout", Text: strings.Repeat("x", maxUnreadOutputBytes/10)})
	}
	r.addPiece(control.OutputPiece{Stream: "stdout", Text: "the end", DroppedBytes: 0})
	r.markComplete(nil)
	p := r.awaitOutputMessage().(outputUpdate)
	size := 0
	for _, one := range p.pieces {
		size += len(one.text)
	}
	if size > maxUnreadOutputBytes || p.pieces[len(p.pieces)-1].text != "the end" || !p.isComplete {
		t.Errorf("the reader keeps %d bytes, the last are %q", size, p.pieces[len(p.pieces)-1].text)
	}
}
