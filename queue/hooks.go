package queue

// HookSet are moments of a job at which another one is made for its sake: a hook.
type HookSet uint8

// The moments, and what says that a job is a hook itself, for whose sake there is none, and whether
// one of the settings, which operators alone see. Their numbers are stored.
const (
	HookCompleted HookSet = 1 << 0
	HookFailed    HookSet = 1 << 1 // an attempt that will be retried
	HookDead      HookSet = 1 << 2
	HookEnded     HookSet = 1 << 3 // completed, dead or cancelled
	HookSettings  HookSet = 1 << 6
	HookItself    HookSet = 1 << 7
)

// Hooks lists the moments, in the order in which their hooks are made.
var Hooks = []HookSet{HookCompleted, HookFailed, HookDead, HookEnded}

// HookQueue is the queue of hooks, and MaxHooks how many of one user may wait: what would be beyond is not
// made.
const (
	HookQueue = "hooks"
	MaxHooks  = 10_000
)

// HooksAt are the moments that have come with a job that is in this state from now on: as failed, by the
// end of an attempt.
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

// String is a moment as settings name it.
func (h HookSet) String() string {
	switch h {
	case HookCompleted:
		return "completed"
	case HookFailed:
		return "failed"
	case HookDead:
		return "dead"
	case HookEnded:
		return "ended"
	}
	return ""
}

// HookLines are what is run for a job's sake: a line for the shell at each moment, "" for nothing.
type HookLines struct {
	OnCompleted string `json:"on_completed,omitempty"`
	OnFailed    string `json:"on_failed,omitempty"`
	OnDead      string `json:"on_dead,omitempty"`
	OnEnded     string `json:"on_ended,omitempty"`
}

// At is the line of one moment.
func (l *HookLines) At(moment HookSet) string {
	switch moment {
	case HookCompleted:
		return l.OnCompleted
	case HookFailed:
		return l.OnFailed
	case HookDead:
		return l.OnDead
	case HookEnded:
		return l.OnEnded
	}
	return ""
}

// Set are the moments that have a line.
func (l *HookLines) Set() (set HookSet) {
	for _, moment := range Hooks {
		if l.At(moment) != "" {
			set |= moment
		}
	}
	return set
}

// Private is the uid of a job of which its user and operators alone may know: a hook of the
// settings. It is nil for any other.
func (j *Job) Private() *int {
	if j.Hooks&HookSettings == 0 {
		return nil
	}
	return new(j.UID)
}
