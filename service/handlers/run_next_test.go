package handlers

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// A job that is enqueued with the option "next" gets a priority above the effective priorities of its owner's waiting
// jobs. If the owner may not set such a high priority, the job gets the highest priority that the owner may set, and
// the reply has a note. The request is not rejected, because the user did not choose that priority.
func TestRunNextPriorityExceedsOwnersWaitingJobs(t *testing.T) {
	s := newSQLiteTestAPI(t)
	order := queue.RankPolicy{Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByEnqueues}
	if err := s.Store.SetRankOrder(t.Context(), order); err != nil {
		t.Fatal(err)
	}
	const other = ownerUID + 1
	add := func(uid int, right control.Right, p control.EnqueueParams) (control.EnqueueResult, int64) {
		t.Helper()
		p.JobSpec.Command = new("true")
		got, err := s.Enqueue(contextAsPeer(t, uid, right), p)
		if err != nil {
			t.Fatal(err)
		}
		j, err := s.Store.GetJob(t.Context(), got.JobID)
		if err != nil {
			t.Fatal(err)
		}
		return got, j.Priority
	}
	check := func(what string, right control.Right, want int64, note string) control.EnqueueResult {
		t.Helper()
		got, priority := add(ownerUID, right, control.EnqueueParams{RunBeforeCallersJobs: true, IdempotencyKey: what})
		text := strings.Join(got.Notes, "\n")
		if priority != want || (note == "") != (text == "") || !strings.HasPrefix(text, note) {
			t.Errorf("%s: priority %d, notes %q; want %d, %q", what, priority, text, want, note)
		}
		return got
	}
	check("nothing waits", control.RightSubmit, 5, "") // without waiting jobs, the new job gets the default priority
	low := control.EnqueueParams{JobSpec: queue.Spec{Priority: new(int64(-5))}}
	add(other, control.RightSubmit, low)
	first := check("one waits that has earned one point, and earns another", control.RightSubmit, 8, "")
	if again := check(
		"one waits that has earned one point, and earns another", control.RightSubmit, 8, "",
	); again.JobID != first.JobID {
		t.Errorf("the key was repeated: job %s, then %s", first.JobID, again.JobID)
	}
	for range 20 {
		add(other, control.RightSubmit, low)
	}
	check("ageing raised one to 28", control.RightSubmit, 15,
		"next: the job is enqueued with priority 15, the highest that you may set in queue default")
	check("ageing raised one to 29", control.RightOperate, 31, "")
	order.Scheduling = queue.SchedulingByArrival
	if err := s.Store.SetRankOrder(t.Context(), order); err != nil {
		t.Fatal(err)
	}
	check("fifo", control.RightSubmit, 5,
		`next: the job is enqueued at its usual place, because the setting "scheduling" is "fifo"`)
}

// A job that is enqueued with the option "next" never gets a priority below its queue's default.
func TestRunNextNeverLowersDefaultPriority(t *testing.T) {
	s := newSQLiteTestAPI(t)
	ctx := contextAsPeer(t, ownerUID, control.RightSubmit)
	low := control.EnqueueParams{JobSpec: queue.Spec{Command: new("true"), Priority: new(int64(-5))}}
	if _, err := s.Enqueue(ctx, low); err != nil {
		t.Fatal(err)
	}
	batch := control.EnqueueBatchParams{Commit: true, RunBeforeCallersJobs: true,
		Jobs: []queue.Spec{{Command: new("true")}, {Command: new("true")}}}
	got, err := s.EnqueueBatch(ctx, batch)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range got.JobIDs {
		if j, err := s.Store.GetJob(ctx, id); err != nil || j.Priority != 5 {
			t.Errorf("job %s has priority %d, %v; want 5", id, j.Priority, err)
		}
	}
}

// A job that is enqueued with the option "next" gets a priority above that of its owner's failed job that
// waits for its retry, even if another job of the owner could start now.
func TestRunNextPriorityExceedsRetryingJob(t *testing.T) {
	s := newSQLiteTestAPI(t)
	ctx := contextAsPeer(t, ownerUID, control.RightSubmit)
	put := func(p control.EnqueueParams) int64 {
		t.Helper()
		p.JobSpec.Command = new("true")
		got, err := s.Enqueue(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		j, err := s.Store.GetJob(t.Context(), got.JobID)
		if err != nil {
			t.Fatal(err)
		}
		return j.Priority
	}
	put(control.EnqueueParams{JobSpec: queue.Spec{Priority: new(int64(9))}})
	claimed, err := s.Store.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 1})
	if err != nil || len(claimed.ClaimedJobs) != 1 {
		t.Fatalf("claimed %d jobs, %v", len(claimed.ClaimedJobs), err)
	}
	failed := queue.AttemptDecision{NextState: queue.Failed, CountsTowardMaxAttempts: true, RecordsAttempt: true,
		StartDelay: time.Minute}
	settlement := store.Settlement{Lease: claimed.ClaimedJobs[0].Lease(), Decision: failed}
	if _, err := s.Store.ReportAndClaim(t.Context(),
		store.LeaseReport{Settlements: []store.Settlement{settlement}}); err != nil {
		t.Fatal(err)
	}
	put(control.EnqueueParams{JobSpec: queue.Spec{Priority: new(int64(4))}})
	if got := put(control.EnqueueParams{RunBeforeCallersJobs: true}); got != 10 {
		t.Errorf("a job with next has priority %d, want 10", got)
	}
}

// All requests of a batch with the option "next" use the priority that was computed for the first one. For a
// later batch with the same name, the priority is computed again.
func TestRunNextPriorityIsEqualAcrossBatch(t *testing.T) {
	s := newSQLiteTestAPI(t)
	ctx := contextAsPeer(t, ownerUID, control.RightSubmit)
	send := func(commit bool) []string {
		t.Helper()
		p := control.EnqueueBatchParams{BatchName: "b", Commit: commit, RunBeforeCallersJobs: true,
			Jobs: []queue.Spec{{Command: new("true")}}}
		got, err := s.EnqueueBatch(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		return got.JobIDs
	}
	add := func(priority int64) {
		t.Helper()
		p := control.EnqueueParams{JobSpec: queue.Spec{Command: new("true"), Priority: &priority}}
		if _, err := s.Enqueue(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want int64) {
		t.Helper()
		send(false)
		add(want + 1)
		ids := send(true)
		for _, id := range ids {
			if j, err := s.Store.GetJob(t.Context(), id); err != nil || j.Priority != want {
				t.Errorf("job %s has priority %d, %v; want %d", id, j.Priority, err, want)
			}
		}
		if n := len(s.runNextBatches.batchByKey); n != 0 {
			t.Errorf("%d batches are remembered after the commit", n)
		}
	}
	add(7)
	check(8)
	check(10) // the batch's jobs get priority 10, above the waiting job of priority 9
}

// The service remembers a limited number of batches per user. It forgets a batch for which no more requests
// arrive.
func TestRunNextForgetsAbandonedBatches(t *testing.T) {
	var n runNextBatches
	n.rememberFirstBatchRequest(batchKey{1, "other user"}, runNextBatch{earlierJobCount: 1})
	for i := range store.MaxStagedBatchesPerUser + 1 {
		n.rememberFirstBatchRequest(batchKey{2, strconv.Itoa(i)}, runNextBatch{store.WaitingPriority{Priority: int64(i),
			JobFound: true}, queue.UnixMillis(i), 1})
	}
	_, first := n.recordBatchRequest(batchKey{2, "0"}, 20, 1)
	b, second := n.recordBatchRequest(batchKey{2, "1"}, 20, 3)
	if first || !second || b.bestWaiting.Priority != 1 || b.earlierJobCount != 1 ||
		len(n.batchByKey) != store.MaxStagedBatchesPerUser+1 {
		t.Errorf("first %t, second %t with %d; %d batches are remembered", first, second, b.bestWaiting.Priority,
			len(n.batchByKey))
	}
	n.rememberFirstBatchRequest(batchKey{1, "later"},
		runNextBatch{lastRequestAt: queue.UnixMillis(20).Add(store.BatchStagingTimeout), earlierJobCount: 1})
	if b, known := n.recordBatchRequest(batchKey{2, "1"}, 21, 1); !known || b.earlierJobCount != 4 ||
		len(n.batchByKey) != 2 {
		t.Errorf("batch with a recent request known: %t; %d batches are remembered, want 2", known, len(n.batchByKey))
	}
	n.forgetBatch(2, "1")
	if _, known := n.recordBatchRequest(batchKey{2, "1"}, 21, 1); known {
		t.Error("a removed batch is remembered")
	}
}

// A job that is enqueued with the option "next" starts before its owner's waiting jobs, even with the setting
// aging = enqueue, where each new job raises the priority of all waiting jobs. The jobs of a batch start in
// the order of the batch.
func TestRunNextJobStartsFirstWithEnqueueAging(t *testing.T) {
	s := newSQLiteTestAPI(t)
	if err := s.Store.SetRankOrder(t.Context(), queue.RankPolicy{Scheduling: queue.SchedulingByAging,
		AgingUnit: queue.AgingByEnqueues}); err != nil {
		t.Fatal(err)
	}
	ctx := contextAsPeer(t, ownerUID, control.RightOperate)
	for _, id := range []string{"old", "older-next", "next"} {
		p := control.EnqueueParams{JobSpec: queue.Spec{ID: &id, Command: new("true")}, RunBeforeCallersJobs: id != "old"}
		if _, err := s.Enqueue(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	for i, ids := range [][]string{{"b1", "b2"}, {"b3", "b4"}} {
		p := control.EnqueueBatchParams{BatchName: "b", Commit: i == 1, RunBeforeCallersJobs: true}
		for _, id := range ids {
			p.Jobs = append(p.Jobs, queue.Spec{ID: &id, Command: new("true")})
		}
		if _, err := s.EnqueueBatch(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	next, err := s.Store.SimulateClaims(t.Context(), 10)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, j := range next.StartingJobs {
		got = append(got, j.ID)
	}
	if want := "b1 b2 b3 b4 next older-next old"; strings.Join(got, " ") != want {
		t.Errorf("they would start in the order %q, want %q", got, want)
	}
}
