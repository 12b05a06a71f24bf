package engine

import (
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/rules"
)

// A job whose row is damaged does not prevent other jobs from starting. The claim changes it to the state
// held, and it is shown with the reason. It can be cancelled and removed.
func TestADamagedJobIsHeld(t *testing.T) {
	s := openStore(t, t.TempDir())
	id, seq := holdDamagedJob(t, s)
	j, err := s.GetJob(t.Context(), id)
	if err != nil || j.State != queue.Held || !strings.Contains(j.Error, "damaged") {
		t.Errorf("got %v, %q, %v, want a held job with the reason", j.State, j.Error, err)
	}
	if page, err := s.ListJobs(t.Context(), store.JobFilter{Limit: 10}); err != nil || len(page.Jobs) != 2 {
		t.Errorf("listed %d jobs, %v, want 2", len(page.Jobs), err)
	}
	if err := s.ChangeJob(t.Context(), seq, store.JobChange{Verb: queue.VerbCancel, UID: 0}); err != nil {
		t.Errorf("cancel: %v", err)
	}
	if err := s.ChangeJob(t.Context(), seq, store.JobChange{Verb: queue.VerbRetry}); err == nil {
		t.Error("a job without its settings was retried")
	}
	if err := s.ChangeJob(t.Context(), seq, store.JobChange{Verb: queue.VerbRemove, UID: 0}); err != nil {
		t.Errorf("remove: %v", err)
	}
	want := [queue.Cancelled + 1]int64{queue.Pending: 1}
	if got := s.Counts().JobsByState; got != want {
		t.Errorf("counts %v, want %v", got, want)
	}
}

// holdDamagedJob damages the older of two new jobs, and checks that a claim takes the other one.
func holdDamagedJob(t *testing.T, s *Store) (id string, seq int64) {
	t.Helper()
	r := enqueue(t, s, 2)
	err := s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
		err := tx.Exec(`UPDATE jobs SET terms = '{' WHERE seq = ?`, r.Seqs[0])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	grant, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 100})
	claimed := map[int64]bool{}
	for i := range grant.ClaimedJobs {
		claimed[grant.ClaimedJobs[i].Seq] = true
	}
	if err != nil || claimed[r.Seqs[0]] || !claimed[r.Seqs[1]] {
		t.Fatalf("claimed %v, %v, want %d and not %d", claimed, err, r.Seqs[1], r.Seqs[0])
	}
	return r.IDs[0], r.Seqs[0]
}

// If damage or another program has put a job into a lane (the list of jobs that may start) although its state
// does not allow that, a claim removes it from the lane. The job stops neither the claim nor the store,
// whether its row is readable or not.
func TestClaimRemovesMisplacedRowFromLane(t *testing.T) {
	for what, harm := range map[string]string{
		"readable":   `UPDATE jobs SET state = 6 WHERE seq = 1`,
		"unreadable": `UPDATE jobs SET state = 7, terms = '{' WHERE seq = 1`,
		"too late":   `UPDATE jobs SET state = 2, expires_at = 1 WHERE seq = 1`,
	} {
		s := openStore(t, t.TempDir())
		enqueue(t, s, 2)
		err := s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
			err := tx.Exec(harm)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		jobs, err := s.AwaitJobs(t.Context(), 9)
		if err != nil || len(jobs) != 1 || jobs[0].Seq != 2 {
			t.Errorf("%s: claimed %+v, %v, want the other job", what, jobs, err)
		}
		if n := queryNumber(t, s, `SELECT place FROM jobs WHERE seq = 1`); n != int64(rules.SlotNotQueued) {
			t.Errorf("%s: the damaged job still has the place %d", what, n)
		}
	}
}
