package cli

import (
	"context"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/queue"
)

// minRedrawInterval is the minimum time between two prints of a watched list.
const minRedrawInterval = 500 * time.Millisecond

// redrawOnChanges prints a list again after each change, until the user presses Ctrl-C or the service ends.
// On a terminal it redraws the list in place.
func (a *App) redrawOnChanges(ctx context.Context, printList func() error) error {
	c, err := a.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	st, err := c.Status(ctx, control.NoParams{})
	if err != nil {
		return err
	}
	changed := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The stream begins with the event after the status was read. So no change before the first print of the list is
	// missed.
	ended := FollowEvents(ctx, c, control.EventsParams{AfterSeq: &st.LastEventSeq}, func(control.Event) error {
		queue.TrySend(changed, struct{}{})
		return nil
	})
	for {
		if err := a.RedrawScreen(printList); err != nil {
			return err
		}
		pause := time.After(minRedrawInterval)
		// On a terminal, redraw the list every second, because it shows the ages of jobs.
		var redrawTimer <-chan time.Time
		if term.IsTerminal(a.Stdout) {
			redrawTimer = time.After(time.Second)
		}
		select {
		case <-redrawTimer:
		case <-changed:
		case err := <-ended:
			return err
		}
		<-pause
		if !term.IsTerminal(a.Stdout) {
			a.Println("") // ignore the error: after an error, redrawing fails too
		}
	}
}

// FollowEvents starts a goroutine that calls handleEvent for every event, and returns immediately. The
// returned channel receives the error when the connection is lost or ctx ends.
func FollowEvents(ctx context.Context, c *control.Client, p control.EventsParams,
	handleEvent func(control.Event) error) (streamEnd <-chan error) {
	end := make(chan error, 1)
	p.Follow = true
	go func() { // this goroutine ends when the stream ends
		_, err := c.StreamEvents(ctx, p, handleEvent)
		end <- err
	}()
	return end
}

// openEventChannel follows events and sends them to a channel until ctx ends. When the connection is lost, it sends the
// error to the second channel. openEventChannel uses a separate connection, because a stream can be ended early only by
// closing its connection.
func openEventChannel(ctx context.Context, c *control.Client, p control.EventsParams) (events <-chan control.Event,
	streamEnd <-chan error) {
	c = c.Clone()
	context.AfterFunc(ctx, func() { c.Close() })
	list := make(chan control.Event)
	return list, FollowEvents(ctx, c, p, func(e control.Event) error {
		select {
		case list <- e:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}
