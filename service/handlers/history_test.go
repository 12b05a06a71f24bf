package handlers

import (
	"errors"
	"fmt"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// The reply about a job with many attempts contains the newest ones. A request for older attempts names an
// attempt, and gets those before it. The total number of attempts includes a running one.
func TestShowPagesTheHistory(t *testing.T) {
	s := newStoreRig(t)
	s.enqueueJobs(t, jobNamed("a"))
	const attempts = 250
	for range attempts {
		s.endJobs(t, s.claimJobs(t, 1), queue.Pending, queue.Attempt{Error: "exit code 1"})
	}
	ctx := asPeer(t, ownerUID, control.RightSubmit)
	for _, c := range []struct{ before, first, last int }{{0, 151, 250}, {151, 51, 150}, {51, 1, 50}, {2, 1, 1}, {1, 0, 0},
		{1000, 151, 250}} {
		d, err := s.Show(ctx, control.Show{ID: "a", HistoryBefore: c.before})
		if err != nil || d.HistoryTotal != attempts {
			t.Fatalf("before %d: %d in all, %v", c.before, d.HistoryTotal, err)
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
func TestDeadJobsAreRetriedInSteps(t *testing.T) {
	s := newStoreRig(t)
	const dead = 2*control.MaxSelectedPerRequest + 10
	s.enqueueJobs(t, namedJobs("j", dead)...)
	for n := 0; n < dead; n += 670 {
		s.endJobs(t, s.claimJobs(t, 670), queue.Dead, queue.Attempt{})
	}
	seen, steps := map[string]bool{}, 0
	for cursor := ""; ; steps++ {
		v, err := s.DLQRetry(asPeer(t, ownerUID, control.RightSubmit), control.DLQRetry{All: true, Cursor: cursor})
		if err != nil || len(v.Refusals) > 0 || len(v.DoneIDs) > control.MaxSelectedPerRequest {
			t.Fatalf("step %d: %d done, %d refused, %v", steps, len(v.DoneIDs), len(v.Refusals), err)
		}
		for _, id := range v.DoneIDs {
			seen[id] = true
		}
		if v.Next == nil {
			break
		}
		cursor = *v.Next
	}
	if n := s.Store.Counts().States[queue.Pending]; len(seen) != dead || n != dead || steps != 2 {
		t.Errorf("%d jobs in %d steps; %d are waiting", len(seen), steps+1, n)
	}
	if _, err := s.DLQRetry(asPeer(t, ownerUID, control.RightSubmit),
		control.DLQRetry{All: true, Cursor: "x"}); !errors.Is(err, queue.ErrInvalid) {
		t.Error(fmt.Errorf("a wrong cursor: %w", err))
	}
}
