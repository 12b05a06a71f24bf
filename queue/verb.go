package queue

import "slices"

// Verb is what a person asks of a stored job that no worker holds.
// See docs/decisions/0063.
type Verb string

// The verbs, as the wire names them.
const (
	VerbCancel    Verb = "cancel"
	VerbRetry     Verb = "retry"
	VerbRetryDead Verb = "dlq.retry"
	VerbHold      Verb = "hold"
	VerbRelease   Verb = "release"
	VerbEdit      Verb = "edit"
	VerbRemove    Verb = "rm"
)

// rule is one row of the table of verbs.
type rule struct {
	from  []State // that it acts on
	holds []State // in which what it asks for holds already
	runs  bool    // it lets the job run
	to    func(State) State
	event EventKind
	only  string // which jobs the verb acts on, for the error about a job in another state
}

func always(to State) func(State) State { return func(State) State { return to } }

func same(s State) State { return s }

var rules = map[Verb]rule{
	VerbCancel:    {[]State{Blocked, Held, Pending, Failed}, []State{Cancelled}, false, always(Cancelled), EventCancelled, "only unfinished jobs can be cancelled"},
	VerbRetry:     {[]State{Failed, Completed, Dead, Cancelled}, []State{Pending}, true, always(Pending), EventRetried, "only failed and finished jobs can be retried"},
	VerbRetryDead: {[]State{Dead}, nil, true, always(Pending), EventRetried, "only dead jobs are in the dead-letter queue"},
	VerbHold:      {[]State{Blocked, Pending, Failed}, []State{Held}, false, always(Held), EventHeld, "only waiting jobs can be held"},
	VerbRelease:   {[]State{Held}, []State{Blocked, Pending, Failed}, true, always(Pending), EventReleased, "only held jobs can be released"},
	VerbEdit:      {[]State{Blocked, Held, Pending, Failed}, nil, false, same, EventEdited, "only waiting jobs can be changed"},
	VerbRemove:    {[]State{Blocked, Held, Pending, Failed, Completed, Dead, Cancelled}, nil, false, always(0), EventRemoved, "only jobs that are not running can be removed"},
}

// Act says what a verb makes of a job: its state afterwards, 0 if it is gone, and
// the event that tells of it. acts is false when nothing is left to do. A job in
// a state that the verb does not take is ErrWrongState.
func (v Verb) Act(j *Job) (to State, event EventKind, acts bool, err error) {
	r := rules[v]
	switch {
	case r.runs && j.Disowned():
		return 0, "", false, Errorf(CodeWrongState, "the account of job %s no longer exists; an admin can set another one: queuectl edit %s '{\"user\":\"NAME\"}'", j.ID, j.ID)
	case slices.Contains(r.holds, j.State):
		return j.State, "", false, nil
	case slices.Contains(r.from, j.State):
		return r.to(j.State), r.event, true, nil
	}
	return 0, "", false, Errorf(CodeWrongState, "job %s is %s; %s%s", j.ID, j.State, r.only, v.insteadOn(j))
}

// insteadOn returns the command that was probably meant for a job that the verb does not act on, "" if none was.
func (v Verb) insteadOn(j *Job) string {
	switch {
	case v == VerbRemove:
		return "; cancel it first with: queuectl cancel " + j.ID
	case v == VerbCancel || v == VerbHold:
		return ""
	case j.State == Held:
		return "; release it with: queuectl release " + j.ID
	case j.State == Failed || j.State.Ended():
		return "; put it back in the queue with: queuectl retry " + j.ID
	}
	return ""
}

// Takes lists the states that the verb acts on.
func (v Verb) Takes() []State { return rules[v].from }
