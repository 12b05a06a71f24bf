package runner

import (
	"context"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/internal/session"
)

// UnkillableAfter returns how long to wait after SIGKILL before the remaining processes of a tree are
// considered unkillable.
func UnkillableAfter() time.Duration {
	if failpoint.IsEnabled("impatient") {
		return 300 * time.Millisecond
	}
	return 30 * time.Second
}

// StopGrace returns the longest time that a command gets between SIGTERM and SIGKILL when the service or its
// runner ends. A job's own setting may be longer, but must not delay the shutdown of the machine.
func StopGrace() time.Duration { return UnkillableAfter() }

// StopGraceOf returns how long a command gets between SIGTERM and SIGKILL when the context of its service
// or runner has ended. The time is shorter than StopGrace if the context ended because the user logs off or
// the machine shuts down.
func StopGraceOf(endedCtx context.Context) time.Duration {
	if session.IsEnding(endedCtx) {
		return session.GracePeriod
	}
	return StopGrace()
}
