package postgres

import (
	"os"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/test/pgserver"
)

var defaultRankOrder = queue.RankPolicy{Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByTime,
	AgingInterval: time.Minute}

// newDraft returns a draft of a job after the given functions have changed it.
func newDraft(changes ...func(*queue.Job)) queue.Job {
	j := queue.Job{Queue: "default", Priority: 5, MaxAttempts: 4, State: queue.Pending, ExitCode: -1,
		ExecutionSettings: queue.ExecutionSettings{Command: "true", Shell: "/bin/sh -c", OnLost: queue.OnLostRetry}}
	for _, f := range changes {
		f(&j)
	}
	return j
}

// completedSettlement returns the report that a job has completed.
func completedSettlement(j *queue.Job) store.Settlement {
	return store.Settlement{Lease: j.Lease(), Decision: queue.AttemptDecision{NextState: queue.Completed,
		CountsTowardMaxAttempts: true, RecordsAttempt: true}}
}

// withUID returns an argument for newDraft that sets the job's user.
func withUID(uid int) func(*queue.Job) { return func(j *queue.Job) { j.UID = uid } }

func TestMain(m *testing.M) {
	code := m.Run()
	pgserver.StopSharedServer()
	os.Exit(code)
}
