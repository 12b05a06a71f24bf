package engine

import (
	"errors"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// The store can be opened even if the disk is full and a committed batch is not yet completely in the queue.
// The rest of the batch is moved later.
func TestStoreOpensOnFullDisk(t *testing.T) {
	s := openStore(t, t.TempDir())
	stageBatchJobs(t, s, "a", 1000, false)
	committed, err := s.Enqueue(t.Context(), store.EnqueueRequest{BatchName: "a"})
	if err != nil {
		t.Fatal(err)
	}
	limit := func(pages string) {
		t.Helper()
		inTransaction(t, s, func() error {
			_, err := s.conn.QueryNumber(`PRAGMA max_page_count = ` + pages)
			return err
		})
	}
	limit("1") // SQLite raises this limit to the current number of pages, so the file cannot grow
	if _, err := s.ApplyBatch(t.Context(), committed.Batch); !errors.Is(err, queue.ErrNoSpace) {
		t.Fatalf("moving a frame on a full disk: got %v, want %v", err, queue.ErrNoSpace)
	}
	if err := s.finishStoredBatches(t.Context()); err != nil {
		t.Errorf("opening on a full disk: %v", err)
	}
	limit("1000000")
	if err := s.finishStoredBatches(t.Context()); err != nil {
		t.Errorf("opening when there is space: %v", err)
	}
	if n := s.Counts().JobsByState[queue.Pending]; n != 1000 || len(s.cache.batches) != 0 {
		t.Errorf("%d jobs are pending and %d batches are left, want 1000 and none", n, len(s.cache.batches))
	}
}

// If ApplyDueChanges removes an aborted batch before AbortBatch does, a new batch may get the same number. AbortBatch
// then removes no job of the new batch.
func TestAbortBatchKeepsNewBatchWithSameNumber(t *testing.T) {
	s := openStore(t, t.TempDir())
	stageBatchJobs(t, s, "aborted", 3, false)
	number := int64(0)
	if err := s.RunAndCommit(t.Context(), PromptClass, func(tx *Tx) error {
		b, _ := s.cache.findOpenBatch(0, "aborted")
		number = b.number
		tx.markBatchForRemoval(b)
		return tx.statementErr
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.finishStoredBatches(t.Context()); err != nil {
		t.Fatal(err)
	}
	stageBatchJobs(t, s, "new", 3, false)
	if b, open := s.cache.findOpenBatch(0, "new"); !open || b.number != number {
		t.Fatalf("the new batch is %+v, want one with the number %d", b, number)
	}
	if err := s.finishBatchRemoval(t.Context(), number); err != nil {
		t.Fatal(err)
	}
	committed, err := s.Enqueue(t.Context(), store.EnqueueRequest{BatchName: "new"})
	if err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		if more, err = s.ApplyBatch(t.Context(), committed.Batch); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Counts().JobsByState[queue.Pending]; n != 3 {
		t.Errorf("%d jobs are pending, want 3", n)
	}
}
