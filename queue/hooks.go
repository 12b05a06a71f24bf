package queue

import "slices"

// HookEvents is a set of events of a job. An event can cause a hook: another job, which runs a command or sends a
// webhook.
type HookEvents uint8

// These are the events, and two flags. HookJobFlag marks a job that is itself a hook, so it cannot have hooks.
// SettingsHookFlag marks a hook that the settings of the service define. Only operators and the hook's user may
// see such a job.
//
// The numbers are stored, so they must not change.
const (
	HookCompleted    HookEvents = 1 << 0
	HookFailed       HookEvents = 1 << 1 // an attempt failed and will be retried
	HookDead         HookEvents = 1 << 2
	HookEnded        HookEvents = 1 << 3 // the job is completed, dead or cancelled
	SettingsHookFlag HookEvents = 1 << 6
	HookJobFlag      HookEvents = 1 << 7
)

// AllHookEvents lists the events in the order in which their hook jobs are created.
var AllHookEvents = []HookEvents{HookCompleted, HookFailed, HookDead, HookEnded}

// HookQueue is the queue of hook jobs. MaxWaitingHookJobs is the maximum number of waiting hook jobs of one user. If a
// user has that many, further hook jobs are not created.
const (
	HookQueue          = "hooks"
	MaxWaitingHookJobs = 10_000
)

// HookEventsOfState returns the events that occur when a job enters a state. For Failed it always returns HookFailed,
// which means that an attempt has failed. So call it with Failed only after an attempt has ended.
func HookEventsOfState(s State) HookEvents {
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

// String returns the name of one event, as used in the settings.
func (h HookEvents) String() string { return h.textForEvent("completed", "failed", "dead", "ended") }

// textForEvent returns the text that belongs to the event h. The texts are in the order of AllHookEvents.
func (h HookEvents) textForEvent(texts ...string) string {
	if i := slices.Index(AllHookEvents, h); i >= 0 {
		return texts[i]
	}
	return ""
}

// HookCommands holds the shell commands of a job's hooks. "" means no hook.
type HookCommands struct {
	OnCompleted string `json:"on_completed,omitempty"`
	OnFailed    string `json:"on_failed,omitempty"`
	OnDead      string `json:"on_dead,omitempty"`
	OnEnded     string `json:"on_ended,omitempty"`
}

// CommandForEvent returns the command for one event, or "" if the event has no hook.
func (c *HookCommands) CommandForEvent(event HookEvents) string {
	return event.textForEvent(c.OnCompleted, c.OnFailed, c.OnDead, c.OnEnded)
}

// EventsWithCommand returns the set of events that have a command.
func (c *HookCommands) EventsWithCommand() (events HookEvents) {
	for _, event := range AllHookEvents {
		if c.CommandForEvent(event) != "" {
			events |= event
		}
	}
	return events
}

// RestrictedToUID returns the uid of the only user, apart from operators, that may see the job. Only hooks that the
// settings define are restricted like this, to the user of the hook. For all other jobs, the result is nil.
func (j *Job) RestrictedToUID() *int {
	if j.HookEvents&SettingsHookFlag == 0 {
		return nil
	}
	return new(j.UID)
}
