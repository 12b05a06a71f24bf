package control

import "context"

// EventAPI reports what happened in the queue.
type EventAPI interface {
	// StreamEvents sends the stored events whose numbers are higher than p.AfterSeq. With Follow, it then waits and sends
	// later events when they happen. It calls handleEvent for every event, and ends if handleEvent returns an error.
	StreamEvents(ctx context.Context, p EventsParams, handleEvent func(Event) error) (EventStreamEnd, error)
}

// EventsParams holds the parameters of the method events, which sends the events with a number higher than AfterSeq. If
// AfterSeq is nil, the service sends all stored events or, with Follow, only events that happen later.
type EventsParams struct {
	AfterSeq   *int64   `json:"since,omitempty" rule:"eventSeq"`
	Follow     bool     `json:"follow,omitempty"`
	FromTime   Time     `json:"from,omitzero"`                     // only events that happened at this time or later
	UntilTime  Time     `json:"until,omitzero"`                    // only events that happened before this time
	JobIDs     JobIDs   `json:"id,omitempty" rule:"eventIDs"`      // only events of these jobs
	EventKinds TextList `json:"event,omitempty" rule:"eventKinds"` // only events of these kinds
	// WithAuditFields requests the events that users have caused, including kinds of events that the service sends only
	// with WithAuditFields. Each event then contains the user, the command and its target. Only admins may set
	// WithAuditFields.
	WithAuditFields bool `json:"audit,omitempty"`
}

// Event is one event in the queue. Fields that do not apply to its kind are left out.
type Event struct {
	// Seq is the number of the event. The events are numbered without gaps. If a number is missing, the service has not
	// sent that event, for example because it does not match the request.
	Seq             int64  `json:"seq"`
	OccurredAt      Time   `json:"at"`
	Kind            string `json:"event"`
	JobID           string `json:"id,omitempty"` // id of the job
	JobSeq          int64  `json:"job_seq,omitempty"`
	State           string `json:"state,omitempty"` // state of the job after the event
	Attempt         int    `json:"attempt,omitempty"`
	StartedAt       Time   `json:"started_at,omitzero"`
	ProgressPercent *int   `json:"percent,omitempty"` // progress of the attempt
	ExitCode        *int64 `json:"exit_code,omitempty"`
	Signal          int    `json:"signal,omitempty"`
	Reason          string `json:"reason,omitempty"`
	HasOutput       bool   `json:"output,omitempty"` // the attempt has printed something
	User            string `json:"user,omitempty"`   // user who caused the event
	SettingName     string `json:"key,omitempty"`    // name of the setting that was changed
	SettingValue    string `json:"value,omitempty"`
	Schedule        string `json:"schedule,omitempty"`
	OccurrenceAt    Time   `json:"instant,omitzero"` // planned start of a schedule's job
	MissedStarts    int    `json:"count,omitempty"`  // number of planned starts that were missed, up to OccurrenceAt
	// The next fields are set only if the request had WithAuditFields: the user, the client process, the command and its
	// target.
	UID           *int   `json:"uid,omitempty"`
	PeerPID       int    `json:"peer_pid,omitempty"`
	AuditCommand  string `json:"verb,omitempty"`
	CommandTarget string `json:"target,omitempty"`
}

// EventStreamEnd is the response to StreamEvents. LastEventSeq is the number of the last event that was sent. If no
// event was sent, it is the AfterSeq of the request.
type EventStreamEnd struct {
	LastEventSeq int64 `json:"last"`
}
