package runner

import (
	"context"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/internal/session"
)

// SigkillTimeout returns how long to wait after SIGKILL. Processes that exist longer are considered unkillable.
func SigkillTimeout() time.Duration {
	if failpoint.IsEnabled("impatient") {
		return 300 * time.Millisecond
	}
	return 30 * time.Second
}

// StopGracePeriod returns the longest time that a command gets between SIGTERM and SIGKILL when the service or its
// runner ends. A longer setting of a job does not apply then, because it must not delay the shutdown of the machine.
func StopGracePeriod() time.Duration { return SigkillTimeout() }

// StopGracePeriodFor returns how long a command gets between SIGTERM and SIGKILL when the context of its service
// or runner has ended. The time is shorter than StopGracePeriod if the context ended because the user logs off or
// the machine shuts down.
func StopGracePeriodFor(endedCtx context.Context) time.Duration {
	if session.IsEnding(endedCtx) {
		return session.CommandGracePeriod
	}
	return StopGracePeriod()
}
