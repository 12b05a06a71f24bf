package sqlite

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// A committed batch cannot be moved into the queue if the disk is full when the store opens. Until the batch is
// moved, its jobs count for all limits, and no other job can get their ids.
func TestUnappliedBatchCountsTowardLimitsAfterReopen(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	stageBatchJobs(t, s, "a", 2000)
	committed, err := s.Enqueue(t.Context(), store.EnqueueRequest{BatchName: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ApplyBatch(t.Context(), committed.Batch); err != nil { // move the first half of the jobs
		t.Fatal(err)
	}
	before := s.StoredBytesOfUser(0)
	s.Close()
	full := filepath.Join(dir, sqlitedb.ReserveFileName) // the store cannot create the reserve file
	if err := errors.Join(os.Remove(full), os.Mkdir(full, 0o700)); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir)
	if after := s.StoredBytesOfUser(0); after != before || before < 2000*store.QuotaBytesPerJob {
		t.Errorf("the user's jobs use %d bytes after opening, %d before", after, before)
	}
	asks := func(what string, most int64, want error) {
		t.Helper()
		for _, r := range []store.EnqueueRequest{{MaxPendingJobs: most}, {MaxPendingJobsPerUser: most}} {
			r.Drafts = []queue.Job{newDraft()}
			if _, err := s.Enqueue(t.Context(), r); !errors.Is(err, want) {
				t.Errorf("%s, where max_pending is %d and max_pending_per_user %d: got %v, want %v", what, r.MaxPendingJobs,
					r.MaxPendingJobsPerUser, err, want)
			}
		}
	}
	asks("while the disk is full", 2000, queue.ErrQueueFull)
	asks("while the disk is full", 2001, queue.ErrNoSpace)
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	// Make the store check the free space again.
	s.RunAndCommit(t.Context(), engine.UrgentClass,
		func(t *engine.Tx) error { s.lastSpaceCheck.checkedAt = time.Time{}; return nil })
	for _, id := range []string{"1500", "2000"} {
		if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{
			newDraft(func(j *queue.Job) { j.ID = id })}}); !errors.Is(err, queue.ErrExists) {
			t.Errorf("a job whose id %s is the number of a job of the batch: got %v, want %v", id, err, queue.ErrExists)
		}
	}
	if _, err := s.ApplyBatch(t.Context(), committed.Batch); err != nil {
		t.Fatal(err)
	}
	asks("when all are moved", 2000, queue.ErrQueueFull)
	for more := true; more; {
		if more, err = s.ApplyBatch(t.Context(), committed.Batch); err != nil {
			t.Fatal(err)
		}
	}
	asks("when it is finished", 2000, queue.ErrQueueFull)
	asks("when it is finished", 2002, nil)
}
