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
	Event    string `json:"event"`
	ID       string `json:"id"`
	JobSeq   int64  `json:"job_seq"`
	State    string `json:"state"`
	Attempt  int    `json:"attempt"`
	ExitCode *int   `json:"exit_code"`
	Reason   string `json:"reason"`
}

// campaignEvents receives the events of a round while they happen, and stores them by job. It reconnects
// when the connection breaks.
type campaignEvents struct {
	campaign *campaign
	stop     chan struct{}
	follower sync.WaitGroup

	mu sync.Mutex
	// firstSeq is the number of the first event in this round. mu guards it and the fields below.
	firstSeq     int64
	lastSeq      int64                   // number of the newest received event
	jobs         map[int64]*eventHistory // by the number (seq) of the job
	receivedSeqs []int64                 // numbers of all received events
}

// eventHistory is the state of a job according to its events.
type eventHistory struct {
	id        string
	state     string // state after the last event; "" if the job was removed
	isRemoved bool
	ends      []campaignEvent // events that have ended an attempt
	events    []campaignEvent
}

// followEvents starts to receive events. It skips the events that already exist.
func (c *campaign) followEvents() *campaignEvents {
	c.Helper()
	e := &campaignEvents{campaign: c, stop: make(chan struct{}), jobs: map[int64]*eventHistory{}}
	var status struct {
		LastEvent int64 `json:"last_event"`
	}
	if err := json.Unmarshal(c.mustRequest("status", testrig.Fields{}).Result, &status); err != nil {
		c.Fatal(err)
	}
	e.firstSeq, e.lastSeq = status.LastEvent+1, status.LastEvent
	e.follower.Go(e.receive)
	return e
}

// receive receives events until stop is closed.
func (e *campaignEvents) receive() {
	// If no event arrives for a second, the request times out. The next request continues after
	// the last received event.
	a := &testrig.Requester{Q: e.campaign.Queue, Timeout: time.Second}
	for {
		select {
		case <-e.stop:
			if a.Conn != nil {
				a.Conn.Close()
			}
			return
		default:
		}
		e.mu.Lock()
		since := e.lastSeq
		e.mu.Unlock()
		got, err := a.Request("events", testrig.Fields{"since": since, "follow": true}, e.record)
		switch {
		case isDialError(err):
			time.Sleep(5 * time.Millisecond) // try again: the service may be restarting
		case err == nil && got.Error != nil && got.Error.Data.Code != "unavailable":
			e.campaign.recordViolation("events", "since %d: %+v", since, *got.Error)
			time.Sleep(100 * time.Millisecond) // the service may return the same error again
		}
	}
}

// record adds one event to the history of its job.
func (e *campaignEvents) record(raw json.RawMessage) {
	var notification struct{ Value campaignEvent }
	if err := json.Unmarshal(raw, &notification); err != nil {
		e.campaign.recordViolation("events", "%s: %v", raw, err)
		return
	}
	v := notification.Value
	e.mu.Lock()
	defer e.mu.Unlock()
	if v.Seq <= e.lastSeq {
		e.campaign.recordViolation("events", "number %d came after %d", v.Seq, e.lastSeq)
	}
	e.lastSeq = v.Seq
	e.receivedSeqs = append(e.receivedSeqs, v.Seq)
	if v.JobSeq == 0 {
		return
	}
	s := e.jobs[v.JobSeq]
	if s == nil {
		s = &eventHistory{id: v.ID}
		e.jobs[v.JobSeq] = s
		if v.Event != "enqueued" {
			e.campaign.recordViolation("events", "job %s begins with %+v", v.ID, v)
		}
	}
	s.events = append(s.events, v)
	if fault := s.apply(v); fault != "" {
		e.campaign.recordViolation("events", "job %s: %s: %+v", s.id, fault, s.events)
	}
}

// eventTransitions lists, for each event, the states that a job may have before and after it. The state ""
// means that the job does not exist.
var eventTransitions = map[string]struct{ from, to []string }{
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

// apply adds an event to the history of a job. It returns a description of what is wrong with the event, or "".
func (s *eventHistory) apply(v campaignEvent) string {
	move, known := eventTransitions[v.Event]
	if !known {
		return "unknown event"
	}
	oldState := s.state
	s.state = v.State
	if v.Event == "removed" {
		s.isRemoved, s.state = true, ""
	}
	if !slices.Contains(move.from, oldState) || !slices.Contains(move.to, s.state) {
		return fmt.Sprintf("%s from %q to %q", v.Event, oldState, s.state)
	}
	if v.Event == "ended" {
		if want := len(s.ends) + 1; v.Attempt != want {
			return fmt.Sprintf("attempt %d ended, want %d", v.Attempt, want)
		}
		s.ends = append(s.ends, v)
	}
	return ""
}

// countAttemptEnds returns how many of the received events ended an attempt of the job with the number seq.
func (e *campaignEvents) countAttemptEnds(seq int64) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if h := e.jobs[seq]; h != nil {
		return len(h.ends)
	}
	return 0
}

// finish checks that the numbers of the stored events, including those of the audit log, have no gap up to
// lastNumber. Then it waits until the newest stored event was received, stops the receiver, and compares the
// received events with the stored ones.
func (e *campaignEvents) finish(lastNumber int64) {
	plain, audited := e.campaign.eventNumbers(e.firstSeq, false), e.campaign.eventNumbers(e.firstSeq, true)
	for n := e.firstSeq; n <= lastNumber; n++ {
		_, inPlain := slices.BinarySearch(plain, n)
		if _, inAudit := slices.BinarySearch(audited, n); !inAudit && !inPlain {
			e.campaign.recordViolation("events", "there is no number %d, of %d to %d", n, e.firstSeq, lastNumber)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); len(plain) > 0 &&
		time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		e.mu.Lock()
		last := e.lastSeq
		e.mu.Unlock()
		if last >= plain[len(plain)-1] {
			break
		}
	}
	close(e.stop)
	e.follower.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	if got := e.receivedSeqs[:min(len(e.receivedSeqs), len(plain))]; !slices.Equal(got, plain) {
		e.campaign.recordViolation("events",
			"%d were received, %d are stored since %d", len(e.receivedSeqs), len(plain), e.firstSeq)
	}
}

// eventNumbers lists the numbers of stored events in ascending order, starting with firstNumber. If auditOnly
// is true, it lists only the events of the audit log.
func (c *campaign) eventNumbers(firstNumber int64, auditOnly bool) (numbers []int64) {
	a := &testrig.Requester{Q: c.Queue, Timeout: replyTimeLimit}
	got, err := a.Request("events", testrig.Fields{"since": firstNumber - 1, "audit": auditOnly},
		func(raw json.RawMessage) {
			var p struct{ Value campaignEvent }
			json.Unmarshal(raw, &p) // the number of a malformed event is 0, which finish reports as a gap
			numbers = append(numbers, p.Value.Seq)
		})
	if a.Conn != nil {
		a.Conn.Close()
	}
	if err != nil || got.Error != nil {
		c.recordViolation("events", "since %d: %v, %+v", firstNumber-1, err, got.Error)
	}
	return numbers
}
