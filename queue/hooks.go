package queue

import "slices"

// HookEvents is a set of events of a job. For each of them another job, a hook, can be created.
type HookEvents uint8

// The events, and two flags. IsHook means that the job is itself a hook, so it cannot have hooks.
// HookFromSettings means that the hook was requested by the settings, so that only operators may see it. The
// numbers are stored, so they must not change.
const (
	HookCompleted    HookEvents = 1 << 0
	HookFailed       HookEvents = 1 << 1 // an attempt failed and will be retried
	HookDead         HookEvents = 1 << 2
	HookEnded        HookEvents = 1 << 3 // the job is completed, dead or cancelled
	HookFromSettings HookEvents = 1 << 6
	IsHook           HookEvents = 1 << 7
)

// Hooks lists the events, in the order in which their hooks are created.
var Hooks = []HookEvents{HookCompleted, HookFailed, HookDead, HookEnded}

// HookQueue is the queue of hooks. MaxHooks limits the waiting hooks of one user. Further hooks are not
// created.
const (
	HookQueue = "hooks"
	MaxHooks  = 10_000
)

// HookEventsOf returns the events that occur when a job enters a state. For Failed, the job must enter
// it because an attempt ended.
func HookEventsOf(s State) HookEvents {
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
func (h HookEvents) String() string { return h.choose("completed", "failed", "dead", "ended") }

// choose returns the text for one event. texts are in the order of Hooks.
func (h HookEvents) choose(texts ...string) string {
	if i := slices.Index(Hooks, h); i >= 0 {
		return texts[i]
	}
	return ""
}

// HookCommands holds the shell commands of a job's hooks; "" means no hook.
type HookCommands struct {
	OnCompleted string `json:"on_completed,omitempty"`
	OnFailed    string `json:"on_failed,omitempty"`
	OnDead      string `json:"on_dead,omitempty"`
	OnEnded     string `json:"on_ended,omitempty"`
}

// CommandFor returns the command for one event.
func (c *HookCommands) CommandFor(event HookEvents) string {
	return event.choose(c.OnCompleted, c.OnFailed, c.OnDead, c.OnEnded)
}

// CommandEvents returns the events that have a command.
func (c *HookCommands) CommandEvents() (set HookEvents) {
	for _, event := range Hooks {
		if c.CommandFor(event) != "" {
			set |= event
		}
	}
	return set
}

// RestrictedToUID returns the uid of the job's user if only this user and operators may see the job, because it is a
// hook of the settings. It returns nil for any other job.
func (j *Job) RestrictedToUID() *int {
	if j.HookEvents&HookFromSettings == 0 {
		return nil
	}
	return new(j.UID)
}
