package queue

import "slices"

// Verb is an action of a user on a stored job that no node has claimed.
type Verb string

// These are the verbs. Their values are their names in the protocol.
const (
	VerbCancel    Verb = "cancel"
	VerbRetry     Verb = "retry"
	VerbRetryDead Verb = "dlq.retry"
	VerbHold      Verb = "hold"
	VerbRelease   Verb = "release"
	VerbEdit      Verb = "edit"
	VerbRemove    Verb = "rm"
)

// verbRule is one row of the table of verbs.
type verbRule struct {
	statesWithEffect    []State // states in which the verb changes a job
	statesWithoutEffect []State // states in which the verb is accepted but changes nothing
	makesJobRunnable    bool    // the verb lets the job run
	// the job's state after the verb; 0 for VerbRemove, and for VerbEdit, which keeps the state
	nextState        State
	eventKind        EventKind // event to record
	acceptedJobsText string    // text for error messages: which jobs the verb accepts
}

var verbRules = map[Verb]verbRule{
	VerbCancel: {[]State{Blocked, Held, Pending, Failed}, []State{Cancelled}, false, Cancelled,
		EventCancelled,
		"only unfinished jobs can be cancelled"},
	VerbRetry: {[]State{Failed, Completed, Dead, Cancelled}, []State{Pending}, true, Pending, EventRetried,
		"only failed, completed, dead and cancelled jobs can be retried"},
	VerbRetryDead: {[]State{Dead}, nil, true, Pending, EventRetried,
		"only dead jobs are in the dead-letter queue"},
	VerbHold: {[]State{Blocked, Pending, Failed}, []State{Held}, false, Held, EventHeld,
		"only waiting jobs can be held"},
	VerbRelease: {[]State{Held}, []State{Blocked, Pending, Failed}, true, Pending, EventReleased,
		"only held jobs can be released"},
	VerbEdit: {[]State{Blocked, Held, Pending, Failed}, nil, false, 0, EventEdited,
		"only waiting jobs can be changed"},
	VerbRemove: {[]State{Blocked, Held, Pending, Failed, Completed, Dead, Cancelled}, nil, false, 0,
		EventRemoved,
		"only jobs that are not running can be removed"},
}

// EffectOn returns the effect of a verb on a job: the job's next state and the event to record. If the next state is 0,
// the job is to be removed. hasEffect is false if the verb would not change the job. If the job's state does not allow
// the verb, EffectOn returns ErrWrongState.
func (v Verb) EffectOn(j *Job) (nextState State, event EventKind, hasEffect bool, err error) {
	r := verbRules[v]
	switch {
	case r.makesJobRunnable && j.IsDisowned():
		return 0, "", false, Errorf(CodeWrongState,
			"the account of job %s no longer exists; an admin can set another account: queuectl edit %s '{\"user\":\"NAME\"}'",
			j.ID, j.ID)
	case slices.Contains(r.statesWithoutEffect, j.State):
		return j.State, "", false, nil
	case slices.Contains(r.statesWithEffect, j.State) && v == VerbEdit:
		return j.State, r.eventKind, true, nil
	case slices.Contains(r.statesWithEffect, j.State):
		return r.nextState, r.eventKind, true, nil
	}
	return 0, "", false, Errorf(CodeWrongState, "job %s is %s; %s%s", j.ID, j.State, r.acceptedJobsText,
		v.suggestCommand(j))
}

// suggestCommand returns the command that the user probably wants if the job's state does not allow the verb. It
// returns "" if no such command is known.
func (v Verb) suggestCommand(j *Job) string {
	switch {
	case v == VerbRemove:
		return "; cancel it first with: queuectl cancel " + j.ID
	case v == VerbCancel || v == VerbHold:
		return ""
	case j.State == Blocked:
		return "; see which jobs it waits for with: queuectl why " + j.ID
	case j.State == Held:
		return "; release it with: queuectl release " + j.ID
	case j.State == Failed || j.State.HasEnded():
		return "; put it back in the queue with: queuectl retry " + j.ID
	}
	return ""
}

// StatesWithEffect returns the states in which the verb changes a job.
func (v Verb) StatesWithEffect() []State { return verbRules[v].statesWithEffect }
