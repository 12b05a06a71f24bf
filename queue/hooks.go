package queue

import "slices"

// HookSet is a set of events of a job. For each of them another job, a hook, can be created.
type HookSet uint8

// The events, and two flags. HookItself means that the job is itself a hook, so it cannot have hooks.
// HookSettings means that the hook was requested by the settings, so that only operators may see it. The
// numbers are stored, so they must not change.
const (
	HookCompleted HookSet = 1 << 0
	HookFailed    HookSet = 1 << 1 // an attempt failed and will be retried
	HookDead      HookSet = 1 << 2
	HookEnded     HookSet = 1 << 3 // the job is completed, dead or cancelled
	HookSettings  HookSet = 1 << 6
	HookItself    HookSet = 1 << 7
)

// Hooks lists the events, in the order in which their hooks are created.
var Hooks = []HookSet{HookCompleted, HookFailed, HookDead, HookEnded}

// HookQueue is the queue of hooks. MaxHooks limits the waiting hooks of one user. Further hooks are not
// created.
const (
	HookQueue = "hooks"
	MaxHooks  = 10_000
)

// HooksAt returns the events that occur when a job enters a state. For Failed, the job must enter
// it because an attempt ended.
func HooksAt(s State) HookSet {
	switch s {
	case Completed:
		return HookCompleted | HookEnded
	case Failed:
		return HookFailed
	case Dead:
		return HookDead | HookEnded
	case Cancelled:
		return HookEnded
	}
	return 0
}

// String returns the name of an event in the settings.
func (h HookSet) String() string { return h.choose("completed", "failed", "dead", "ended") }

// choose returns the text for one event. texts are in the order of Hooks.
func (h HookSet) choose(texts ...string) string {
	if i := slices.Index(Hooks, h); i >= 0 {
		return texts[i]
	}
	return ""
}

// HookLines holds the shell commands of a job's hooks; "" means no hook.
type HookLines struct {
	OnCompleted string `json:"on_completed,omitempty"`
	OnFailed    string `json:"on_failed,omitempty"`
	OnDead      string `json:"on_dead,omitempty"`
	OnEnded     string `json:"on_ended,omitempty"`
}

// CommandFor returns the command for one event.
func (l *HookLines) CommandFor(event HookSet) string {
	return event.choose(l.OnCompleted, l.OnFailed, l.OnDead, l.OnEnded)
}

// Set returns the events that have a command.
func (l *HookLines) Set() (set HookSet) {
	for _, event := range Hooks {
		if l.CommandFor(event) != "" {
			set |= event
		}
	}
	return set
}

// Private returns the uid of the job's user if only this user and operators may see the job, because it is a
// hook of the settings. It returns nil for any other job.
func (j *Job) Private() *int {
	if j.Hooks&HookSettings == 0 {
		return nil
	}
	return new(j.UID)
}
