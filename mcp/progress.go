package mcp

import (
	"context"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// reporter sends progress notifications for one call, if the client has asked for them with a token. Its progress only
// rises, as the protocol demands. It is for one goroutine at a time.
type reporter struct {
	session *mcp.ServerSession
	token   any
	last    float64
}

// reporterOf returns the reporter of a call.
func reporterOf(r *mcp.CallToolRequest) *reporter {
	return &reporter{session: r.Session, token: r.Params.GetProgressToken(), last: -1}
}

// wanted reports whether the client has asked for progress.
func (r *reporter) wanted() bool { return r != nil && r.token != nil }

// report sends how much of the total is done, unless that is no more than was sent before.
func (r *reporter) report(ctx context.Context, done, total float64, message string) {
	if !r.wanted() || done <= r.last {
		return
	}
	r.last = done
	r.session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ // the answer says the rest, if it fails
		ProgressToken: r.token, Progress: done, Total: total, Message: message,
	})
}

// lastEvent returns the number of the last event, nil if the client has not asked for progress.
func (s *server) lastEvent(ctx context.Context) *int64 {
	if !s.progress.wanted() {
		return nil
	}
	status, err := s.api.Status(ctx, control.Nothing{})
	if err != nil {
		return nil // the events that come are reported
	}
	return &status.LastEvent
}

// follow reports the progress of a job in percent, from the events after since, or from new ones if that is nil. The
// returned function ends that, and waits for the last notification. follow does nothing if the client has not asked for
// progress.
func (s *server) follow(ctx context.Context, id control.Name, since *int64) (stop func()) {
	if !s.progress.wanted() {
		return func() {}
	}
	s.progress.report(ctx, 0, 100, fmt.Sprintf("waiting for job %s", id))
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		c := s.connect() // a stream holds up other answers of its connection
		defer c.Close()
		p := control.Events{Follow: true, Since: since, ID: control.Names{string(id)}}
		p.Event = control.Texts{string(queue.EventProgress)}
		c.Events(ctx, p, func(e control.Event) error { // without it the client gets the first and the last notification
			if e.Percent != nil && *e.Percent < 100 {
				s.progress.report(ctx, float64(*e.Percent), 100, fmt.Sprintf("job %s: %d %%", id, *e.Percent))
			}
			return nil
		})
	}()
	return func() {
		cancel()
		<-done
	}
}
