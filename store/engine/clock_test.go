package engine

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// After the clock jumps by a year, forward or back, jobs are neither lost nor expired (unless they have expires_at),
// and no retry starts too early. ApplyDueChanges asks to be called again within an hour.
func TestJobsSurviveClockJumpOfAYear(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, step := range []time.Duration{year, -year} {
		s := openStore(t, t.TempDir())
		var now atomic.Int64
		now.Store(1_800_000_000_000)
		s.clock = func() queue.UnixMillis { return queue.UnixMillis(now.Load()) }
		enqueue(t, s, 3)
		grant, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 1})
		if err != nil {
			t.Fatal(err)
		}
		retry := queue.AttemptDecision{NextState: queue.Failed, CountsTowardMaxAttempts: true, RecordsAttempt: true,
			StartDelay: 2 * time.Second}
		if _, err := s.ReportAndClaim(t.Context(),
			store.LeaseReport{Settlements: []store.Settlement{{Lease: grant.ClaimedJobs[0].Lease(),
				Decision: retry}}}); err != nil {
			t.Fatal(err)
		}
		now.Add(step.Milliseconds())
		next, err := s.ApplyDueChanges(t.Context())
		if err != nil || next < 0 || next > time.Hour {
			t.Errorf("step %v: Promote said %v, %v, want a time up to an hour", step, next, err)
		}
		c := s.Counts().JobsByState
		if c[queue.Cancelled] != 0 || c[queue.Pending] != 2 || c[queue.Failed] != 1 {
			t.Errorf("step %v: got states %v, want 2 pending and 1 failed", step, c)
		}
		grant, err = s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 9})
		want := 2
		if step > 0 {
			want = 3 // now the retry is due too
		}
		if err != nil || len(grant.ClaimedJobs) != want {
			t.Errorf("step %v: got %d jobs, %v, want %d", step, len(grant.ClaimedJobs), err, want)
		}
		var back []queue.Lease
		for i := range grant.ClaimedJobs {
			back = append(back, grant.ClaimedJobs[i].Lease())
		}
		grant, err = s.ReportAndClaim(t.Context(), store.LeaseReport{ReleasedLeases: back, MaxJobsToClaim: 9})
		if err != nil || len(grant.ClaimedJobs) != want {
			t.Errorf("step %v: got %d jobs again, %v, want %d", step, len(grant.ClaimedJobs), err, want)
		}
		if _, err := s.OldestReadySince(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
