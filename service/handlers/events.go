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

// Events implements control.API.
func (h *API) Events(ctx context.Context, p control.Events, handleEvent func(control.Event) error) (control.EventsEnd,
	error) {
	after, _ := h.Store.LastEvent()
	switch {
	case p.Since != nil:
		after = *p.Since
	case !p.Follow || p.FromTime != 0:
		after = 0
	}
	peer := control.PeerFrom(ctx)
	if p.Audit && !peer.Right.Covers(control.RightAdmin) {
		return control.EventsEnd{}, h.Rights.RefusalError(&peer, "reading audit events", control.RightAdmin)
	}
	sender := &eventSender{api: h, params: p, peer: peer, sendEvent: handleEvent, lastEventSeq: after,
		selectedIDs: map[string]bool{}, unknownIDs: map[string]bool{}}
	for _, id := range p.IDs {
		sender.selectedIDs[id] = true
		switch _, err := h.findJob(ctx, control.JobID(id)); {
		case errors.Is(err, queue.ErrNotFound) && !p.Follow: // ignore the error: the job may have been removed
			sender.unknownIDs[id] = true
		case err != nil:
			return control.EventsEnd{}, err
		}
	}
	for {
		last, changed := h.Store.LastEvent()
		more := false
		err := h.UserLimits.RunStreamStep(ctx, control.ClassManyJobs, func() (err error) {
			more, err = sender.sendStep(ctx, last)
			return err
		})
		switch {
		case err != nil:
			return control.EventsEnd{}, err
		case more:
			continue
		case !p.Follow && len(sender.unknownIDs) > 0:
			return control.EventsEnd{}, queue.Errorf(queue.CodeNotFound, "there is no job %q, and no event mentions it",
				queue.Clip(slices.Sorted(maps.Keys(sender.unknownIDs))[0]))
		case !p.Follow:
			return control.EventsEnd{LastSeq: sender.lastEventSeq}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return control.EventsEnd{}, ctx.Err()
		}
	}
}

// eventSender sends the events that a request selects to the client.
type eventSender struct {
	api          *API
	params       control.Events
	peer         control.Peer // the peer that receives the events
	sendEvent    func(control.Event) error
	lastEventSeq int64           // number of the last event that was handled
	selectedIDs  map[string]bool // the ids in params.IDs

	unknownIDs map[string]bool // ids in params.IDs for which neither a job nor an event was found
}

// sendStep reads a bounded number of events and sends those that the request selects. newestSeq is the number of
// the newest event. more is false if no events were left.
func (t *eventSender) sendStep(ctx context.Context, newestSeq int64) (more bool, err error) {
	list, err := t.api.Store.Events(ctx, t.lastEventSeq, maxEventsPerRead)
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
		if !access.MayRead(&t.peer, e.RestrictedToUID) {
			continue
		}
		delete(t.unknownIDs, e.JobID)
		if !t.selects(e) {
			continue
		}
		v := t.api.viewEvent(e)
		if t.params.Audit {
			v.AddAudit(e)
		}
		if err := t.sendEvent(v); err != nil {
			return false, err
		}
		bytes += len(e.Detail.Value) + len(e.Detail.Target)
	}
	return len(list) > 0, nil
}

// selects reports whether the request selects an event. A request for the audit log selects only events that
// a user caused. Only such a request selects events of the kind queue.EventAudit.
func (t *eventSender) selects(e *queue.Event) bool {
	return e.Time >= queue.Millis(t.params.FromTime) && (t.params.Until == 0 || e.Time < queue.Millis(t.params.Until)) &&
		(len(t.selectedIDs) == 0 || t.selectedIDs[e.JobID]) &&
		(len(t.params.Kinds) == 0 || slices.Contains(t.params.Kinds, string(e.Kind))) &&
		(t.params.Audit && e.Detail.UID != nil || !t.params.Audit && e.Kind != queue.EventAudit)
}

// viewEvent converts an event to its form in a reply.
func (h *API) viewEvent(e *queue.Event) control.Event {
	v := control.ViewEvent(e)
	if e.Detail.UID != nil {
		v.User = h.Owners.UserName(*e.Detail.UID)
	}
	return v
}
