package engine

import (
	"math"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// If damage has deleted the inputs of some jobs, TrimUserData does not count these inputs. It removes inputs
// of other jobs instead.
func TestTrimUserDataSkipsDamagedInputs(t *testing.T) {
	s := openStore(t, t.TempDir())
	const all = 2*maxRemovedOutputsPerStep + 20
	for range all {
		got, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(func(j *queue.Job) {
			j.Stdin = strings.Repeat("x", 2*store.MaxKeptInputBytes)
		})}})
		if err == nil {
			err = s.ChangeJob(t.Context(), got.Seqs[0], store.JobChange{Verb: queue.VerbCancel})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	err := s.RunAndCommit(t.Context(), UrgentClass, func(t *Tx) error {
		return t.Exec(`DELETE FROM inputs WHERE seq <= ?`,
			int64(all-20))
	})
	if err != nil {
		t.Fatal(err)
	}
	before := s.StoredBytesOfUser(0)
	removable, err := s.RemovableUserBytes(t.Context(), 0, math.MaxInt64)
	if err != nil || removable < 20*2*store.MaxKeptInputBytes || removable > 21*2*store.MaxKeptInputBytes {
		t.Errorf("%d bytes can be removed, %v; want those of 20 inputs", removable, err)
	}
	if _, err := s.TrimUserData(t.Context(), 0, before-removable); err != nil ||
		s.StoredBytesOfUser(0) != before-removable {
		t.Errorf("%d bytes were removed, %v; want %d", before-s.StoredBytesOfUser(0), err, removable)
	}
}

// replaceOldestAttempt lets a job fail until it has store.MinKeptAttemptRecords attempt records, and removes
// their outputs. Then the job fails once more while its user exceeds the quota, so the new record replaces
// the oldest one.
func replaceOldestAttempt(t *testing.T, s *Store) {
	t.Helper()
	seq := enqueueForUser(t, s, 0, 1)[0]
	fail := func(quota int64) {
		t.Helper()
		g, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 1000})
		var r store.LeaseReport
		for _, j := range g.ClaimedJobs {
			if j.Seq != seq {
				r.ReleasedLeases = append(r.ReleasedLeases, j.Lease())
				continue
			}
			r.Settlements = append(r.Settlements, store.Settlement{Lease: j.Lease(), Attempt: queue.Attempt{Output: []byte("x")},
				Decision: queue.AttemptDecision{NextState: queue.Failed, CountsTowardMaxAttempts: true, RecordsAttempt: true}})
		}
		r.MaxBytesPerUser = quota
		if _, err2 := s.ReportAndClaim(t.Context(), r); err != nil || err2 != nil || len(r.Settlements) != 1 {
			t.Fatalf("%d of %d claimed jobs ended: %v, %v", len(r.Settlements), len(g.ClaimedJobs), err, err2)
		}
	}
	for range store.MinKeptAttemptRecords {
		fail(0)
	}
	if _, err := s.TrimOutputs(t.Context(), -1); err != nil {
		t.Fatal(err)
	}
	fail(1)
}
