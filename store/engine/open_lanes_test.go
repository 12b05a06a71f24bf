package engine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/records"
)

// After the store is closed and opened again, claimed and running jobs are still leased, with the same fences
// (numbers of leases). Jobs that have ended or were returned to the queue are not leased.
func TestLeasesSurviveReopening(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	enqueue(t, s, 4)
	exchange := func(report store.LeaseReport) []queue.Job {
		t.Helper()
		grant, err := s.ReportAndClaim(t.Context(), report)
		if err != nil || len(grant.StaleLeases) > 0 {
			t.Fatalf("stale %v, error %v", grant.StaleLeases, err)
		}
		return grant.ClaimedJobs
	}
	jobs := exchange(store.LeaseReport{MaxJobsToClaim: 3})
	exchange(store.LeaseReport{AttemptStarts: []store.AttemptStart{{Lease: jobs[0].Lease(), StartedAt: 1}},
		ReleasedLeases: []queue.Lease{jobs[1].Lease(), jobs[2].Lease()}})
	reserved := exchange(store.LeaseReport{MaxJobsToClaim: 1})[0] // claim job 2 again
	reopened := func(want ...queue.Lease) {
		t.Helper()
		s.Close()
		s = openStore(t, dir)
		left, err := s.PreviousSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got []queue.Lease
		for i := range left.LeasedJobs {
			got = append(got, left.LeasedJobs[i].Lease())
		}
		if !slices.Equal(got, want) {
			t.Errorf("leased %v, want %v", got, want)
		}
	}
	reopened(jobs[0].Lease(), reserved.Lease())
	exchange(store.LeaseReport{ReleasedLeases: []queue.Lease{reserved.Lease()}})
	done := queue.AttemptDecision{NextState: queue.Completed, CountsTowardMaxAttempts: true, RecordsAttempt: true}
	exchange(store.LeaseReport{Settlements: []store.Settlement{{Lease: jobs[0].Lease(), Decision: done}}})
	reopened()
	before := []int64{reserved.Fence, jobs[2].Fence, 0}
	claimed := exchange(store.LeaseReport{MaxJobsToClaim: 9})
	for i, j := range claimed {
		if j.Seq != int64(i+2) || j.Fence <= before[i] {
			t.Errorf("claimed %v, want job %d with a fence above %d", j.Lease(), i+2, before[i])
		}
	}
	if len(claimed) != 3 {
		t.Errorf("claimed %d jobs, want 3", len(claimed))
	}
}

// A transaction that is rolled back leaves nothing in memory: the jobs that it claimed can be claimed again,
// and the numbers that it assigned are assigned again.
func TestRollbackRestoresMemory(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueue(t, s, 2)
	before := s.Counts().JobsByState
	err := s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
		if jobs, _, err := tx.rules.Claim(2); err != nil || len(jobs) != 2 {
			t.Errorf("claimed %v, %v, want two", jobs, err)
		}
		j := newDraft()
		tx.draftTexts = []records.EncodedTexts{{Settings: "{}"}}
		if err := tx.rules.InsertJob(&j, 0, 0, tx.engine.cache.NextJobSeq, "undone"); err != nil {
			t.Error(err)
		}
		tx.engine.cache.NextJobSeq++
		err := tx.Exec(`INSERT INTO jobs (seq) VALUES ('no number')`)
		return err
	})
	if err == nil {
		t.Fatal("the database accepted an invalid row")
	}
	if r := enqueue(t, s, 1); r.Seqs[0] != 3 {
		t.Errorf("got seq %d, want 3", r.Seqs[0])
	}
	if before[queue.Pending]++; s.Counts().JobsByState != before {
		t.Errorf("got states %v, want %v", s.Counts().JobsByState, before)
	}
	grant, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 9})
	if err != nil || len(grant.ClaimedJobs) != 3 {
		t.Errorf("claimed %v, %v, want three jobs", grant.ClaimedJobs, err)
	}
}

// A claim does not query the database if it is known that no job is ready: in an empty queue, or after a
// claim has found no more jobs. It queries again once a job is ready, for example because the claim of a job
// was rolled back.
func TestClaimWithoutReadyJobsNeedsNoQuery(t *testing.T) {
	s := openStore(t, t.TempDir())
	var jobs []queue.Job
	claim := func(then error) (asked bool, err error) {
		err = s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) (err error) {
			jobs, _, err = tx.rules.Claim(2)
			asked = tx.hasBegun
			return errors.Join(err, then)
		})
		return asked, err
	}
	claims := func(what string, n int, want bool) {
		t.Helper()
		if asked, err := claim(nil); err != nil || len(jobs) != n || asked != want {
			t.Errorf("%s: %d jobs, asked: %t, %v; want %d, %t", what, len(jobs), asked, err, n, want)
		}
	}
	claims("an empty queue", 0, false)
	enqueue(t, s, 3)
	claims("after three came", 2, true)
	claims("the last", 1, true)
	last := jobs[0].Lease()
	claims("none is left", 0, false)
	if _, err := s.ReportAndClaim(t.Context(), store.LeaseReport{ReleasedLeases: []queue.Lease{last}}); err != nil {
		t.Fatal(err)
	}
	if _, err := claim(errors.New("undone")); err == nil {
		t.Error("a transaction that fails was committed")
	}
	claims("after one was given back", 1, true)
	claims("none is left again", 0, false)
}

// After the store is opened again, all jobs of a committed batch are in the queue. A batch that was not
// committed is discarded. Its ids can be used again, and its client cannot continue it.
func TestStoredBatchesAreFinishedAtOpen(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	named := func(id string) []queue.Job {
		return []queue.Job{newDraft(func(j *queue.Job) { j.ID = id }), newDraft()}
	}
	for _, b := range []string{"done", "open"} {
		for _, part := range []string{"1", "2"} {
			if _, err := s.StageBatch(t.Context(), store.EnqueueRequest{BatchName: b, Drafts: named(b + part)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	committed, err := s.Enqueue(t.Context(), store.EnqueueRequest{BatchName: "done", Drafts: named("done3")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ApplyBatch(t.Context(), committed.Batch); err != nil { // move one of three frames
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir)
	if n := s.Counts().JobsByState[queue.Pending]; n != 6 {
		t.Errorf("%d jobs wait, want the 6 that were committed", n)
	}
	if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{BatchName: "open", Drafts: named("open3")}); !errors.Is(err,
		queue.ErrWrongState) {
		t.Errorf("the end of a batch that is gone: %v", err)
	}
	if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: named("open1")}); err != nil {
		t.Errorf("its id: %v", err)
	}
	for _, table := range []string{"frames", "staged_ids"} {
		err := s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
			n, err := tx.QueryNumber(`SELECT count(*) FROM ` + table)
			if n != 0 {
				t.Errorf("%d rows remain in %s", n, table)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A claim that waits for a job may be cancelled at the moment when a job is ready. The claim then ends, even
// if the job cannot be claimed in the end.
func TestCancelledClaimEnds(t *testing.T) {
	s := openStore(t, t.TempDir())
	for range 300 {
		enqueue(t, s, 1)
		grant, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 1})
		if err != nil || len(grant.ClaimedJobs) != 1 {
			t.Fatal(grant, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			jobs, err := s.AwaitJobs(ctx, 1)
			for i := range jobs { // only if the claim got the job before its context ended
				_, err = s.ReportAndClaim(context.Background(),
					store.LeaseReport{Settlements: []store.Settlement{{Lease: jobs[i].Lease(),
						Decision: queue.AttemptDecision{NextState: queue.Completed}}}})
			}
			done <- err
		}()
		held := make(chan error, 1)
		// Return the job to the queue and hold it in one transaction, so that it cannot be claimed.
		go func() {
			_, err := s.ReportAndClaim(context.Background(),
				store.LeaseReport{LeasedJobChanges: []store.LeasedJobChange{{Lease: grant.ClaimedJobs[0].Lease(),
					JobChange: store.JobChange{Verb: queue.VerbHold}}}})
			held <- err
		}()
		cancel()
		if err := <-held; err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the claim does not end")
		}
	}
}

// If the store is closed while it computes new ranks, or the order of jobs is changed while it is closed,
// jobs get the ranks of the current order after the store is opened again. This holds even if the current
// order is the original one.
func TestRerankingContinuesAfterReopening(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	var drafts []queue.Job
	for i := range 2*rerankedJobsPerTx + 10 {
		drafts = append(drafts, newDraft(func(j *queue.Job) { j.Priority = int64(i % 7) }))
	}
	if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts}); err != nil {
		t.Fatal(err)
	}
	byPriority := queue.RankPolicy{Scheduling: queue.SchedulingByPriority, AgingInterval: time.Minute}
	wrong := func() (n int64) {
		t.Helper()
		for more := true; more; {
			var err error
			if more, err = s.RerankWaitingJobs(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		err := s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) (err error) {
			n, err = tx.QueryNumber(`SELECT count(*) FROM jobs WHERE rank <> iif(?, -priority, since - priority * 60000)`,
				records.BoolToInt(s.RankOrder() == byPriority))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	reopen := func(o queue.RankPolicy) {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		var err error
		if s, err = Open(t.Context(), Options{Dir: dir, RankOrder: o}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SetRankOrder(t.Context(), byPriority); err != nil {
		t.Fatal(err)
	}
	for range 3 { // compute the ranks of the blocked and held jobs, and of some pending ones
		if _, err := s.RerankWaitingJobs(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	reopen(defaultRankOrder)
	if n := wrong(); n != 0 {
		t.Errorf("%d jobs have a rank of the abandoned order", n)
	}
	reopen(byPriority)
	if n := wrong(); n != 0 {
		t.Errorf("%d jobs have a rank of the order before", n)
	}
	s.Close()
}

// A fence (the number of a lease) cannot be predicted from the fences of earlier claims.
func TestFencesAreUnpredictable(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueue(t, s, 100)
	last, steps := map[int64]int64{}, map[int64]int{}
	for range 10 {
		grant, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 100})
		if err != nil || len(grant.ClaimedJobs) != 100 {
			t.Fatalf("%d jobs, %v", len(grant.ClaimedJobs), err)
		}
		var released []queue.Lease
		for i := range grant.ClaimedJobs {
			l := grant.ClaimedJobs[i].Lease()
			steps[l.Fence-last[l.Seq]]++
			last[l.Seq] = l.Fence
			released = append(released, l)
		}
		if _, err := s.ReportAndClaim(t.Context(), store.LeaseReport{ReleasedLeases: released}); err != nil {
			t.Fatal(err)
		}
	}
	upper := 0
	for step := range steps {
		if step < 1 || step > maxFenceIncrement {
			t.Errorf("a step of %d", step)
		}
		if step > maxFenceIncrement/2 {
			upper++
		}
	}
	if len(steps) < 999 || upper < 300 || upper > 700 { // of 1,000 steps in total
		t.Errorf("%d steps differ, %d are in the upper half", len(steps), upper)
	}
}
