package handlers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// If other jobs start before a job, API.ExplainWaiting returns how many, of which users, and the reasons.
func TestExplainWaitingListsEarlierStartingJobs(t *testing.T) {
	const other, third = ownerUID + 1, ownerUID + 2
	s := newSQLiteTestAPI(t) // this service orders jobs by priority
	put := func(uid, n int, priority int64) {
		drafts := make([]queue.Job, n)
		for i := range drafts {
			drafts[i] = draftWithID("")
			drafts[i].UID, drafts[i].Priority = uid, priority
		}
		if _, err := s.Store.Enqueue(t.Context(), store.EnqueueRequest{UID: uid, Drafts: drafts}); err != nil {
			t.Fatal(err)
		}
	}
	why := func(id string) control.WaitingExplanation {
		w, err := s.ExplainWaiting(contextAsPeer(t, ownerUID, control.RightSubmit),
			control.ExplainWaitingParams{ID: control.JobID(id)})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	put(third, 1, 5)
	j := draftWithID("mine")
	j.Priority = 5
	s.enqueueJobs(t, j)
	put(other, 2, 14)
	put(other, 1, 15)
	put(other, 1, 5) // this job was enqueued later
	want := []string{fmt.Sprintf("3 from %d because of higher priority (up to 15)", other),
		fmt.Sprintf("1 from %d because of longer waiting", third)}
	w := why("mine")
	var got []string
	for _, a := range w.JobsAheadByUser {
		got = append(got, a.Text)
	}
	if w.JobsAhead == nil || *w.JobsAhead != 4 || !slices.Equal(got, want) {
		t.Errorf("of %v jobs: %q, want %q", w.JobsAhead, got, want)
	}
	j = draftWithID("mine2")
	j.Priority = 5
	s.enqueueJobs(t, j)
	put(third, 1, 5) // this job was also enqueued later, but starts first because users take turns
	want = []string{fmt.Sprintf("4 from %d because of higher priority (up to 15)", other),
		fmt.Sprintf("2 from %d because users take turns", third),
		fmt.Sprintf("1 from %d because of longer waiting", ownerUID)}
	got = nil
	for _, a := range why("mine2").JobsAheadByUser {
		got = append(got, a.Text)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	put(other, store.MaxScreenRowsPerPart, 15)
	if w = why("mine"); w.JobsAhead != nil || w.MinJobsAhead != store.MaxScreenRowsPerPart ||
		len(w.JobsAheadByUser) != 1 ||
		w.JobsAheadByUser[0].Jobs != store.MaxScreenRowsPerPart {
		t.Errorf("after more jobs than are counted: %+v", w)
	}
	raw, err := json.Marshal(w)
	if err != nil || !strings.Contains(string(raw),
		fmt.Sprintf(`"ahead":null,"ahead_at_least":%d,"ahead_by_user":[{`, store.MaxScreenRowsPerPart)) {
		t.Errorf("in JSON: %s, %v", raw, err)
	}
}

// If a job of the same priority starts first because it was enqueued earlier, API.ExplainWaiting returns the reason
// "longer waiting". If jobs are ordered by priority alone, it does not return this reason.
func TestExplainWaitingReportsLongerWaitingJobs(t *testing.T) {
	const other = ownerUID + 1
	for _, order := range []queue.RankPolicy{{Scheduling: queue.SchedulingByArrival}, {Scheduling: queue.SchedulingByAging,
		AgingInterval: time.Minute},
		{Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByEnqueues}} {
		s := newSQLiteTestAPI(t)
		if err := s.Store.SetRankOrder(t.Context(), order); err != nil {
			t.Fatal(err)
		}
		theirs, mine := draftWithID("theirs"), draftWithID("mine")
		theirs.UID = other
		for _, j := range []queue.Job{theirs, mine} {
			if _, err := s.Store.Enqueue(t.Context(), store.EnqueueRequest{UID: j.UID, Drafts: []queue.Job{j}}); err != nil {
				t.Fatal(err)
			}
		}
		w, err := s.ExplainWaiting(contextAsPeer(t, ownerUID, control.RightSubmit), control.ExplainWaitingParams{ID: "mine"})
		if want := fmt.Sprintf("1 from %d because of longer waiting", other); err != nil || len(w.JobsAheadByUser) != 1 ||
			w.JobsAheadByUser[0].Text != want {
			t.Errorf("%+v: %+v, %v; want %q", order, w.JobsAheadByUser, err, want)
		}
	}
}
