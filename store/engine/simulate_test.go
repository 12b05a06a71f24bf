package engine

import (
	"cmp"
	"errors"
	"fmt"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// A simulation that stops at its limit of work reports that it is incomplete. To reach the limit, all jobs of
// one user need the same lock, and each job also needs a second lock that no other job needs. So after the
// claim of the first job, each other job must be recorded separately as waiting for the first lock.
func TestSimulationSaysThatItIsIncomplete(t *testing.T) {
	for _, c := range []struct {
		many       int
		incomplete bool
	}{{500, false}, {6000, true}} {
		s := openStore(t, t.TempDir())
		for from := 0; from < c.many; from += queue.MaxJobsPerRequest {
			drafts := make([]queue.Job, min(c.many-from, queue.MaxJobsPerRequest))
			for i := range drafts {
				drafts[i] = newDraft(withUID(1), func(j *queue.Job) {
					j.Priority = 15
					j.Demands = []queue.Demand{
						{Kind: queue.GateLock, GateKey: "common", Amount: 1}, {Kind: queue.GateLock, GateKey: fmt.Sprint("l", from+i),
							Amount: 1},
					}
				})
			}
			if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts, UID: 1}); err != nil {
				t.Fatal(err)
			}
		}
		other := enqueueForUser(t, s, 2, 1)
		want := []int64{1}
		if !c.incomplete {
			want = append(want, other...)
		}
		got, err := s.SimulateClaims(t.Context(), 20)
		if err != nil || got.IsIncomplete != c.incomplete || len(got.StartingJobs) != len(want) {
			t.Fatalf("%d lanes: got %d jobs, incomplete %t, %v; want %d, %t",
				c.many, len(got.StartingJobs), got.IsIncomplete, err, len(want), c.incomplete)
		}
		for i := range want {
			if got.StartingJobs[i].Seq != want[i] {
				t.Errorf("%d lanes: got job %d at index %d, want %d", c.many, got.StartingJobs[i].Seq, i, want[i])
			}
		}
	}
}

// The store counts the jobs that name a lock. If a part of a transaction is undone, the jobs in this part no
// longer count, but jobs that were enqueued earlier in the transaction do.
func TestRolledBackJobsDoNotCountAtGates(t *testing.T) {
	s := openStore(t, t.TempDir())
	withLock := newDraft(withUID(1), func(j *queue.Job) {
		j.Demands = []queue.Demand{{Kind: queue.GateLock, GateKey: "l",
			Amount: 1}}
	})
	undone := errors.New("undone")
	err := s.RunAndCommit(t.Context(), NormalClass, func(tx *Tx) error {
		if err := enqueueInTx(tx, withLock); err != nil {
			return err
		}
		if err := tx.WithSavepoint(func() error { return cmp.Or(enqueueInTx(tx, withLock), undone) }); err != undone {
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.Gates(t.Context(), 1, store.GateState{})
	if err != nil || len(list) != 1 || list[0].UnfinishedJobs != 1 {
		t.Errorf("got %+v, %v; want one gate that one job names", list, err)
	}
}
