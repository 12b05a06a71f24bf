package engine

import (
	"fmt"
	"testing"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// enqueueForLocks enqueues two jobs for each of lockCount locks: one with priority 15, then one with
// priority -5. It returns the seqs of the jobs with priority 15.
func enqueueForLocks(t *testing.T, s *Store, uid, lockCount int) (priority15Seqs []int64) {
	t.Helper()
	for from := 0; from < lockCount; from += queue.MaxJobsPerRequest / 2 {
		var drafts []queue.Job
		for i := from; i < min(lockCount, from+queue.MaxJobsPerRequest/2); i++ {
			for _, priority := range []int64{15, -5} {
				drafts = append(drafts, newDraft(withUID(uid), func(j *queue.Job) {
					j.Priority = priority
					j.Demands = []queue.Demand{{Kind: queue.GateLock, GateKey: fmt.Sprint("l", i), Amount: 1}}
				}))
			}
		}
		got, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts, UID: uid})
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(got.Seqs); i += 2 {
			priority15Seqs = append(priority15Seqs, got.Seqs[i])
		}
	}
	return priority15Seqs
}

// A lane is the list of a user's waiting jobs in a queue that need the same locks and other limits. If the first job
// leaves the lane or gets a low priority, the stored rank of the lane changes too. Otherwise a user with thousands of
// such lanes could slow down all searches for the best job.
func TestChangedHeadJobUpdatesLaneRank(t *testing.T) {
	skip.IfShort(t, "takes long; make test-long runs it")
	const many, attacker, victim = 5500, 1, 2
	for name, c := range map[string]store.JobChange{
		"cancelled": {Verb: queue.VerbCancel, UID: attacker},
		"held":      {Verb: queue.VerbHold, UID: attacker},
		"edited":    {Verb: queue.VerbEdit, UID: attacker, EditJob: func(j *queue.Job) error { j.Priority = -5; return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, t.TempDir())
			clock := s.clock()
			s.clock = func() queue.UnixMillis { return clock }
			first := enqueueForLocks(t, s, attacker, many)
			err := s.RunAndCommit(t.Context(), UrgentClass, func(t *Tx) error {
				for _, seq := range first {
					if err := t.rules.ChangeJob(seq, c); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			own := enqueueForUser(t, s, victim, 1)
			enqueueForUser(t, s, attacker, 1, func(j *queue.Job) {
				j.Priority = 9
				j.Demands = []queue.Demand{{Kind: queue.GateLock, GateKey: "zzz", Amount: 1}}
			})
			if got, err := s.BestWaitingPriority(t.Context(), attacker); got != (store.WaitingPriority{Priority: 9,
				JobFound: true}) {
				t.Errorf("best waiting job: got %+v, %v; want priority 9", got, err)
			}
			next, err := s.SimulateClaims(t.Context(), 20)
			if err != nil || len(next.StartingJobs) != 20 || next.StartingJobs[0].Priority != 9 ||
				next.StartingJobs[1].Seq != own[0] {
				t.Errorf("simulated %d jobs, %v; want 20, with job %d as the second", len(next.StartingJobs), err, own[0])
			}
			expectNoFaults(t, s, "at the end")
		})
	}
}
