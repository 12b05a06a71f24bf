package engine

import (
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// A claim reads its jobs into memory that later claims reuse. This memory must not keep the jobs' inputs, and a claim
// of several lanes must get the jobs of each lane.
func TestClaimBufferIsEmptyAfterClaim(t *testing.T) {
	s := openStore(t, t.TempDir())
	defer s.Close()
	for uid, jobCount := range map[int]int{1001: 3, 1002: 1, 1003: 2} {
		enqueueForUser(t, s, uid, jobCount, func(j *queue.Job) { j.Stdin = "input" })
	}
	seqs, jobs := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 10})
	if len(seqs) != 6 {
		t.Fatalf("the claim took the jobs %v, want 6 jobs", seqs)
	}
	for i := range jobs {
		if jobs[i].Stdin != "input" {
			t.Errorf("the claimed job %s has the input %q", jobs[i].ID, jobs[i].Stdin)
		}
	}
	if cap(s.claimBuffer) == 0 {
		t.Error("the claim has kept no memory for later claims")
	}
	for _, j := range s.claimBuffer[:cap(s.claimBuffer)] {
		if j.Seq != 0 {
			t.Errorf("after the claim, the memory still contains job %s", j.ID)
		}
	}
}

// A damaged job, which a claim does not take, does not stay in the memory that later claims reuse.
func TestClaimBufferKeepsNoDamagedJob(t *testing.T) {
	s := openStore(t, t.TempDir())
	defer s.Close()
	enqueueForUser(t, s, 1001, 3, func(j *queue.Job) { j.Stdin = "input" })
	damageLastJob := func(t *Tx) error { return t.Exec(`UPDATE jobs SET state = 5 WHERE seq = 3`) }
	if err := s.RunAndCommit(t.Context(), UrgentClass, damageLastJob); err != nil {
		t.Fatal(err)
	}
	if seqs, _ := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 10}); len(seqs) != 2 {
		t.Fatalf("the claim took the jobs %v, want 1 and 2", seqs)
	}
	for _, j := range s.claimBuffer[:cap(s.claimBuffer)] {
		if j.Seq != 0 {
			t.Errorf("after the claim, the memory still contains job %s", j.ID)
		}
	}
}

// A large claim must not make the service keep much memory.
func TestClaimBufferOfLargeClaimIsFreed(t *testing.T) {
	s := openStore(t, t.TempDir())
	defer s.Close()
	for _, jobCount := range []int{maxClaimBufferJobs / 2, maxClaimBufferJobs + 1} {
		for left := jobCount; left > 0; left -= 1000 {
			enqueueForUser(t, s, 1001, min(left, 1000))
		}
		if seqs, _ := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: jobCount}); len(seqs) != jobCount {
			t.Fatalf("the claim took %d jobs, want %d", len(seqs), jobCount)
		}
		got, kept := cap(s.claimBuffer), jobCount <= maxClaimBufferJobs
		if kept != (got >= jobCount) || got > maxClaimBufferJobs {
			t.Errorf("after a claim of %d jobs, there is memory for %d jobs, limit %d", jobCount, got, maxClaimBufferJobs)
		}
	}
}
