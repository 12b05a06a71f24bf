package mcp

import (
	"context"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// progressReporter sends progress notifications for one call of a tool, if the client has requested them with a token.
// It sends only increasing progress, as the protocol requires. It is not safe for concurrent use.
type progressReporter struct {
	session          *mcp.ServerSession
	progressToken    any
	lastSentProgress float64 // progress in the last notification; -1 before the first
}

// progressReporterOf returns the reporter for a call.
func progressReporterOf(r *mcp.CallToolRequest) *progressReporter {
	return &progressReporter{session: r.Session, progressToken: r.Params.GetProgressToken(), lastSentProgress: -1}
}

// isRequested reports whether the client has requested progress notifications.
func (r *progressReporter) isRequested() bool { return r != nil && r.progressToken != nil }

// sendProgress sends the progress if it is higher than in the last notification.
func (r *progressReporter) sendProgress(ctx context.Context, done, total float64, message string) {
	if !r.isRequested() || done <= r.lastSentProgress {
		return
	}
	r.lastSentProgress = done
	// Ignore the error, because the client still gets the reply to its call.
	r.session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
		ProgressToken: r.progressToken, Progress: done, Total: total, Message: message,
	})
}

// lastEventSeq returns the number of the queue's last event. A later reportJobProgress can report the progress since
// that event. lastEventSeq returns nil if the client has not requested progress notifications.
func (s *toolCall) lastEventSeq(ctx context.Context) *int64 {
	if !s.progress.isRequested() {
		return nil
	}
	status, err := s.api.Status(ctx, control.NoParams{})
	if err != nil {
		return nil // reportJobProgress then reports only later events
	}
	return &status.LastEventSeq
}

// reportJobProgress reports the progress of a job in percent until the caller calls stop. stop returns when the last
// notification has been sent. reportJobProgress reports only progress after the event with the number sinceEventSeq or,
// if sinceEventSeq is nil, from now on. It does nothing if the client has not requested progress notifications.
func (s *toolCall) reportJobProgress(ctx context.Context, id control.JobID, sinceEventSeq *int64) (stop func()) {
	if !s.progress.isRequested() {
		return func() {}
	}
	s.progress.sendProgress(ctx, 0, 100, fmt.Sprintf("waiting for job %s", id))
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // this goroutine ends when ctx ends
		defer close(done)
		c := s.newClient() // use a separate connection, because the stream of events would delay other replies
		defer c.Close()
		p := control.EventsParams{Follow: true, AfterSeq: sinceEventSeq, JobIDs: control.JobIDs{string(id)}}
		p.EventKinds = control.TextList{string(queue.EventProgress)}
		// Ignore an error: the client then gets only the first and the last notification.
		c.StreamEvents(ctx, p, func(e control.Event) error {
			if e.ProgressPercent != nil && *e.ProgressPercent < 100 {
				s.progress.sendProgress(ctx, float64(*e.ProgressPercent), 100, fmt.Sprintf("job %s: %d %%", id, *e.ProgressPercent))
			}
			return nil
		})
	}()
	return func() {
		cancel()
		<-done
	}
}
