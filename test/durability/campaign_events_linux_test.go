package durability

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// campaignEvent is an event as the API method "events" returns it.
type campaignEvent struct {
	Seq      int64  `json:"seq"`
	Name     string `json:"event"`
	JobID    string `json:"id"`
	JobSeq   int64  `json:"job_seq"`
	State    string `json:"state"`
	Attempt  int    `json:"attempt"`
	ExitCode *int   `json:"exit_code"`
	Reason   string `json:"reason"`
}

// campaignEventReceiver receives the events of a round while they happen, and stores the events by job. It reconnects
// when the connection to the service breaks.
type campaignEventReceiver struct {
	campaign      *campaign
	stopSignal    chan struct{}
	receiverGroup sync.WaitGroup

	mu sync.Mutex
	// firstEventSeq is the number of the first event in this round. mu guards firstEventSeq and the fields below.
	firstEventSeq     int64
	lastEventSeq      int64                   // number of the newest received event
	historyByJobSeq   map[int64]*eventHistory // by the number (seq) of the job
	receivedEventSeqs []int64                 // numbers of all received events
}

// eventHistory is the state of a job according to its events.
type eventHistory struct {
	jobID            string
	jobState         string // state after the last event; "" if the job was removed
	isRemoved        bool
	attemptEndEvents []campaignEvent // events that have ended an attempt
	events           []campaignEvent
}

// followEvents starts to receive events. It skips the events that already exist.
func (c *campaign) followEvents() *campaignEventReceiver {
	c.Helper()
	e := &campaignEventReceiver{campaign: c, stopSignal: make(chan struct{}), historyByJobSeq: map[int64]*eventHistory{}}
	var status struct {
		LastEvent int64 `json:"last_event"`
	}
	if err := json.Unmarshal(c.requestUntilServed("status", testrig.JSONFields{}).Result, &status); err != nil {
		c.Fatal(err)
	}
	e.firstEventSeq, e.lastEventSeq = status.LastEvent+1, status.LastEvent
	e.receiverGroup.Go(e.receiveEvents)
	return e
}

// receiveEvents receives events until stopSignal is closed.
func (e *campaignEventReceiver) receiveEvents() {
	// If no event arrives for a second, the request times out. The next request continues after
	// the last received event.
	a := &testrig.Requester{TargetQueue: e.campaign.Harness, ReplyTimeout: time.Second}
	for {
		select {
		case <-e.stopSignal:
			if a.Conn != nil {
				a.Conn.Close()
			}
			return
		default:
		}
		e.mu.Lock()
		since := e.lastEventSeq
		e.mu.Unlock()
		got, err := a.Request("events", testrig.JSONFields{"since": since, "follow": true}, e.recordEvent)
		switch {
		case isDialError(err):
			time.Sleep(5 * time.Millisecond) // try again: the service may be restarting
		case err == nil && got.Error != nil && got.Error.Data.Code != "unavailable":
			e.campaign.recordViolation("events", "since %d: %+v", since, *got.Error)
			time.Sleep(100 * time.Millisecond) // the service may return the same error again
		}
	}
}

// recordEvent adds one event to the history of its job.
func (e *campaignEventReceiver) recordEvent(rawEvent json.RawMessage) {
	var notification struct{ Value campaignEvent }
	if err := json.Unmarshal(rawEvent, &notification); err != nil {
		e.campaign.recordViolation("events", "%s: %v", rawEvent, err)
		return
	}
	v := notification.Value
	e.mu.Lock()
	defer e.mu.Unlock()
	if v.Seq <= e.lastEventSeq {
		e.campaign.recordViolation("events", "number %d came after %d", v.Seq, e.lastEventSeq)
	}
	e.lastEventSeq = v.Seq
	e.receivedEventSeqs = append(e.receivedEventSeqs, v.Seq)
	if v.JobSeq == 0 {
		return
	}
	s := e.historyByJobSeq[v.JobSeq]
	if s == nil {
		s = &eventHistory{jobID: v.JobID}
		e.historyByJobSeq[v.JobSeq] = s
		if v.Name != "enqueued" {
			e.campaign.recordViolation("events", "job %s begins with %+v", v.JobID, v)
		}
	}
	s.events = append(s.events, v)
	if fault := s.applyEvent(v); fault != "" {
		e.campaign.recordViolation("events", "job %s: %s: %+v", s.jobID, fault, s.events)
	}
}

// stateTransitionsByEvent lists, for each event, the states that a job may have before and after it. The state ""
// means that the job does not exist.
var stateTransitionsByEvent = map[string]struct{ from, to []string }{
	"enqueued": {[]string{""}, []string{"pending", "held", "blocked"}},
	"started":  {[]string{"pending", "failed"}, []string{"processing"}},
	"ended": {[]string{"pending", "failed", "processing"},
		[]string{"completed", "failed", "dead", "cancelled", "pending", "held"}},
	"expired":   {[]string{"pending", "failed", "held"}, []string{"cancelled"}},
	"cancelled": {[]string{"pending", "failed", "held"}, []string{"cancelled"}},
	"retried":   {[]string{"failed", "completed", "dead", "cancelled"}, []string{"pending"}},
	"removed":   {[]string{"pending", "failed", "held", "completed", "dead", "cancelled"}, []string{""}},
	"held":      {[]string{"pending", "failed"}, []string{"held"}},
	"released":  {[]string{"held"}, []string{"pending"}},
	"edited":    {[]string{"pending", "failed", "held"}, []string{"pending", "failed", "held"}},
}

// applyEvent adds an event to the history of a job. It returns a description of what is wrong with the event, or "".
func (s *eventHistory) applyEvent(event campaignEvent) string {
	move, known := stateTransitionsByEvent[event.Name]
	if !known {
		return "unknown event"
	}
	oldState := s.jobState
	s.jobState = event.State
	if event.Name == "removed" {
		s.isRemoved, s.jobState = true, ""
	}
	if !slices.Contains(move.from, oldState) || !slices.Contains(move.to, s.jobState) {
		return fmt.Sprintf("%s from %q to %q", event.Name, oldState, s.jobState)
	}
	if event.Name == "ended" {
		if want := len(s.attemptEndEvents) + 1; event.Attempt != want {
			return fmt.Sprintf("attempt %d ended, want %d", event.Attempt, want)
		}
		s.attemptEndEvents = append(s.attemptEndEvents, event)
	}
	return ""
}

// countAttemptEnds returns how many of the received events ended an attempt of the job with the number (seq) jobSeq.
func (e *campaignEventReceiver) countAttemptEnds(jobSeq int64) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if h := e.historyByJobSeq[jobSeq]; h != nil {
		return len(h.attemptEndEvents)
	}
	return 0
}

// checkReceivedEvents checks that the numbers of the stored events, including those of the audit log, have no gap up to
// lastEventSeq. Then it waits until e has received the newest stored event, stops receiving events, and compares the
// received events with the stored events.
func (e *campaignEventReceiver) checkReceivedEvents(lastEventSeq int64) {
	plain, audited := e.campaign.storedEventSeqs(e.firstEventSeq, false), e.campaign.storedEventSeqs(e.firstEventSeq, true)
	for n := e.firstEventSeq; n <= lastEventSeq; n++ {
		_, inPlain := slices.BinarySearch(plain, n)
		if _, inAudit := slices.BinarySearch(audited, n); !inAudit && !inPlain {
			e.campaign.recordViolation("events", "there is no number %d, of %d to %d", n, e.firstEventSeq, lastEventSeq)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); len(plain) > 0 &&
		time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		e.mu.Lock()
		last := e.lastEventSeq
		e.mu.Unlock()
		if last >= plain[len(plain)-1] {
			break
		}
	}
	close(e.stopSignal)
	e.receiverGroup.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	if got := e.receivedEventSeqs[:min(len(e.receivedEventSeqs), len(plain))]; !slices.Equal(got, plain) {
		e.campaign.recordViolation("events",
			"%d were received, %d are stored since %d", len(e.receivedEventSeqs), len(plain), e.firstEventSeq)
	}
}

// storedEventSeqs lists the numbers of stored events in ascending order, starting with firstEventSeq. If auditOnly
// is true, it lists only the events of the audit log.
func (c *campaign) storedEventSeqs(firstEventSeq int64, auditOnly bool) (eventSeqs []int64) {
	a := &testrig.Requester{TargetQueue: c.Harness, ReplyTimeout: replyTimeLimit}
	got, err := a.Request("events", testrig.JSONFields{"since": firstEventSeq - 1, "audit": auditOnly},
		func(raw json.RawMessage) {
			var p struct{ Value campaignEvent }
			json.Unmarshal(raw, &p) // the number of a malformed event is 0, which checkReceivedEvents reports
			eventSeqs = append(eventSeqs, p.Value.Seq)
		})
	if a.Conn != nil {
		a.Conn.Close()
	}
	if err != nil || got.Error != nil {
		c.recordViolation("events", "since %d: %v, %+v", firstEventSeq-1, err, got.Error)
	}
	return eventSeqs
}
