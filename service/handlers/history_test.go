package handlers

import (
	"errors"
	"fmt"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// The reply about a job with many attempts contains the newest attempts. A request for older attempts names an attempt,
// and gets the attempts before it. The total number of attempts includes a running attempt.
func TestShowJobReturnsPagedAttemptHistory(t *testing.T) {
	s := newSQLiteTestAPI(t)
	s.enqueueJobs(t, draftWithID("a"))
	const attempts = 250
	for range attempts {
		s.endJobs(t, s.claimJobs(t, 1), queue.Pending, queue.Attempt{Error: "exit code 1"})
	}
	ctx := contextAsPeer(t, ownerUID, control.RightSubmit)
	for _, c := range []struct{ before, first, last int }{{0, 151, 250}, {151, 51, 150}, {51, 1, 50}, {2, 1, 1}, {1, 0, 0},
		{1000, 151, 250}} {
		d, err := s.ShowJob(ctx, control.JobShowParams{ID: "a", AttemptsBelowNumber: c.before})
		if err != nil || d.TotalAttempts != attempts {
			t.Fatalf("before %d: %d in all, %v", c.before, d.TotalAttempts, err)
		}
		first, last := 0, 0
		if n := len(d.History); n > 0 {
			first, last = d.History[0].Attempt, d.History[n-1].Attempt
		}
		if first != c.first || last != c.last {
			t.Errorf("before %d: %d to %d, want %d to %d", c.before, first, last, c.first, c.last)
		}
	}
}

// Retrying all dead jobs takes several requests, because one request retries a limited number. Each reply
// contains the cursor for the next request.
func TestRetryOfAllDeadJobsUsesCursor(t *testing.T) {
	s := newSQLiteTestAPI(t)
	const dead = 2*control.MaxJobsPerSelection + 10
	s.enqueueJobs(t, draftsWithPrefix("j", dead)...)
	for n := 0; n < dead; n += 670 {
		s.endJobs(t, s.claimJobs(t, 670), queue.Dead, queue.Attempt{})
	}
	seen, steps := map[string]bool{}, 0
	for cursor := ""; ; steps++ {
		v, err := s.RetryDeadJobs(contextAsPeer(t, ownerUID, control.RightSubmit),
			control.DeadJobRetryParams{AllDeadJobs: true, Cursor: cursor})
		if err != nil || len(v.Refusals) > 0 || len(v.ChangedJobIDs) > control.MaxJobsPerSelection {
			t.Fatalf("step %d: %d done, %d refused, %v", steps, len(v.ChangedJobIDs), len(v.Refusals), err)
		}
		for _, id := range v.ChangedJobIDs {
			seen[id] = true
		}
		if v.NextCursor == nil {
			break
		}
		cursor = *v.NextCursor
	}
	if n := s.Store.Counts().JobsByState[queue.Pending]; len(seen) != dead || n != dead || steps != 2 {
		t.Errorf("%d jobs in %d steps; %d are waiting", len(seen), steps+1, n)
	}
	if _, err := s.RetryDeadJobs(contextAsPeer(t, ownerUID, control.RightSubmit),
		control.DeadJobRetryParams{AllDeadJobs: true, Cursor: "x"}); !errors.Is(err, queue.ErrInvalid) {
		t.Error(fmt.Errorf("a wrong cursor: %w", err))
	}
}
