package handlers

import (
	"context"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/memstore"
	"github.com/queuectl/queuectl/store/storetest/faultstore"
)

// If two requests clean up at the same time, they leave as many jobs as each of them keeps.
func TestSimultaneousCleanupsKeepRequestedJobs(t *testing.T) {
	jobStore := faultstore.New(memstore.New(queue.RankPolicy{}))
	s := newTestAPI(t, testAPIOptions{store: jobStore})
	s.enqueueJobs(t, draftsWithPrefix("j", 10)...)
	s.endJobs(t, s.claimJobs(t, 10), queue.Completed, queue.Attempt{})
	cleanUp := func() (removed int) {
		t.Helper()
		got, err := s.RemoveOldJobs(contextAsPeer(t, 0, control.RightAdmin), control.CleanupParams{MinAgeDays: new(0.0),
			KeepNewestJobs: 6}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return got.RemovedJobs
	}
	removedBySecond := 0
	jobStore.SetHook(func(_ context.Context, c faultstore.Call) error {
		if c.MethodName == "RecordAudit" && c.HasSucceeded { // the first request has counted the jobs
			jobStore.SetHook(nil)
			removedBySecond = cleanUp()
		}
		return nil
	})
	removedByFirst := cleanUp()
	if left := s.Store.Counts().JobsByState[queue.Completed]; left != 6 || removedByFirst+removedBySecond != 4 {
		t.Errorf("the requests removed %d and %d jobs and left %d, want 4 removed and 6 left", removedByFirst,
			removedBySecond, left)
	}
}
