package store

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// Settings keeps the settings that users have stored. It also creates the hook jobs that these settings
// request.
type Settings interface {
	// Settings lists the stored settings.
	Settings(ctx context.Context) ([]Setting, error)
	// SetSetting stores one setting; an empty value removes it.
	SetSetting(ctx context.Context, s Setting) error
	// SetHooks sets which hooks the store creates, until the store is closed. A hook is a job that is created because
	// another job has failed or ended. The transaction that records a job's new state also creates the hooks for that
	// state. The limits on the number of waiting jobs do not apply to hooks.
	SetHooks(ctx context.Context, h HookSettings) error
}

// Setting is one stored setting. It also contains the user who set it and the time.
type Setting struct {
	Key      string
	Value    string
	SetByUID int
	SetAt    queue.UnixMillis
	// EventKind is the kind of the event that records the change; "" means EventSettingChanged. It is not stored.
	EventKind queue.EventKind
	// IsSecret is true if the event must not show the value. It is not stored.
	IsSecret bool
}

// EventValue returns the value as the event about the setting shows it.
func (s *Setting) EventValue() string {
	if s.IsSecret && s.Value != "" {
		return "***"
	}
	return s.Value
}

// HookSettings says which hooks the settings define, and for which events the store creates them; see queue.HookEvents.
// The store also creates the hooks that a job itself defines (HookCommands).
type HookSettings struct {
	TriggerEvents queue.HookEvents // events for which MakeHookDrafts is called; jobs that are hooks have no hooks
	// MakeHookDrafts returns the hooks of a job for the given events, as drafts without an id. j is the job in its new
	// state. The store calls MakeHookDrafts inside a transaction, and possibly again if that transaction is rolled back.
	// So MakeHookDrafts must not block or use the store. If MakeHookDrafts is nil, no hooks are created.
	MakeHookDrafts func(j *queue.Job, events queue.HookEvents) []queue.Job
	// OwnerUID and OwnerName identify the account that owns hooks which do not run as the user of the job.
	OwnerUID  int
	OwnerName string
	// MaxBytesPerUser limits the bytes that one user's jobs may use; 0 means unlimited. If a hook would exceed the limit,
	// older outputs and inputs are removed as described for LeaseReport.MaxBytesPerUser. If that is not enough, the hook
	// is not created.
	MaxBytesPerUser int64
}
