package handlers

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
)

// These constants limit how many events, and how many bytes of their text, are read from the store at a time.
const (
	maxEventsPerRead     = 500
	maxEventBytesPerRead = 64 << 10
)

// StreamEvents implements control.API.
func (h *API) StreamEvents(ctx context.Context, p control.EventsParams,
	handleEvent func(control.Event) error) (result control.EventStreamEnd, err error) {
	after, _ := h.Store.LastEventSeq()
	switch {
	case p.AfterSeq != nil:
		after = *p.AfterSeq
	case !p.Follow || p.FromTime != 0:
		after = 0
	}
	peer := control.PeerFrom(ctx)
	if p.WithAuditFields && !peer.Right.Covers(control.RightAdmin) {
		return result, h.Rights.MissingRightError(&peer, "reading audit events", control.RightAdmin)
	}
	sender := &eventSender{API: h, params: p, peer: peer, sendEvent: handleEvent, lastEventSeq: after,
		selectedJobIDs: map[string]bool{}, unmatchedJobIDs: map[string]bool{}}
	for _, id := range p.JobIDs {
		sender.selectedJobIDs[id] = true
		switch _, err := h.findVisibleJob(ctx, control.JobID(id)); {
		case errors.Is(err, queue.ErrNotFound) && !p.Follow: // ignore the error: the events of a removed job may still exist
			sender.unmatchedJobIDs[id] = true
		case err != nil:
			return result, err
		}
	}
	for {
		last, changed := h.Store.LastEventSeq()
		more := false
		err := h.UserLimits.RunStreamStep(ctx, control.ClassManyJobsRead, func() (err error) {
			more, err = sender.sendNextEvents(ctx, last)
			return err
		})
		switch {
		case err != nil:
			return result, err
		case more:
			continue
		case !p.Follow && len(sender.unmatchedJobIDs) > 0:
			return result, queue.Errorf(queue.CodeNotFound, "there is no job %q, and no event mentions it",
				queue.ClipForMessage(slices.Sorted(maps.Keys(sender.unmatchedJobIDs))[0]))
		case !p.Follow:
			return control.EventStreamEnd{LastEventSeq: sender.lastEventSeq}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return result, ctx.Err()
		}
	}
}

// eventSender sends the events that a request selects to the client.
type eventSender struct {
	*API
	params         control.EventsParams
	peer           control.Peer // the peer that receives the events
	sendEvent      func(control.Event) error
	lastEventSeq   int64           // number of the last event that was handled
	selectedJobIDs map[string]bool // the ids in params.JobIDs

	unmatchedJobIDs map[string]bool // ids in params.JobIDs for which neither a job nor an event was found
}

// sendNextEvents reads a bounded number of events and sends those that the request selects. newestSeq is the number of
// the newest event. more is false if no further events exist.
func (t *eventSender) sendNextEvents(ctx context.Context, newestSeq int64) (more bool, err error) {
	list, err := t.Store.Events(ctx, t.lastEventSeq, maxEventsPerRead)
	if err != nil {
		return false, err
	}
	first := newestSeq + 1 // number of the first event in list, or newestSeq+1 if list is empty
	if len(list) > 0 {
		first = list[0].Seq
	}
	if t.lastEventSeq > 0 && t.lastEventSeq < first-1 {
		return false, queue.Errorf(queue.CodeNotFound,
			"events %d to %d were removed (setting retention_events); continue with since = %d", t.lastEventSeq+1, first-1,
			first-1)
	}
	for i, bytes := 0, 0; i < len(list) && bytes < maxEventBytesPerRead; i++ {
		e := &list[i]
		t.lastEventSeq = e.Seq
		if !access.MaySeeJobExists(&t.peer, e.RestrictedToUID) {
			continue
		}
		delete(t.unmatchedJobIDs, e.JobID)
		if !t.selectsEvent(e) {
			continue
		}
		v := t.newEventView(e)
		if t.params.WithAuditFields {
			v.AddAuditFields(e)
		}
		if err := t.sendEvent(v); err != nil {
			return false, err
		}
		bytes += len(e.Detail.SettingValue) + len(e.Detail.ActionTarget)
	}
	return len(list) > 0, nil
}

// selectsEvent reports whether the request selects an event. A request for the audit log selects only events that a
// user caused. Events of the kind queue.EventAudit are selected only by a request for the audit log.
func (t *eventSender) selectsEvent(e *queue.Event) bool {
	return e.Time >= queue.UnixMillis(t.params.FromTime) &&
		(t.params.UntilTime == 0 || e.Time < queue.UnixMillis(t.params.UntilTime)) &&
		(len(t.selectedJobIDs) == 0 || t.selectedJobIDs[e.JobID]) &&
		(len(t.params.EventKinds) == 0 || slices.Contains(t.params.EventKinds, string(e.Kind))) &&
		(t.params.WithAuditFields && e.Detail.CausedByUID != nil || !t.params.WithAuditFields && e.Kind != queue.EventAudit)
}

// newEventView converts an event to its form in a reply.
func (h *API) newEventView(e *queue.Event) control.Event {
	v := control.NewEventView(e)
	if e.Detail.CausedByUID != nil {
		if v.User = e.Detail.CausedByUser; v.User == "" {
			v.User = h.Owners.UserName(*e.Detail.CausedByUID)
		}
	}
	return v
}
