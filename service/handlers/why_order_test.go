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

// If other jobs start before a job, API.Why returns how many, of which users, and the reasons.
func TestWhySaysWhoStartsBeforeAJob(t *testing.T) {
	const other, third = ownerUID + 1, ownerUID + 2
	s := newStoreRig(t) // this service orders jobs by priority
	put := func(uid, n int, priority int64) {
		drafts := make([]queue.Job, n)
		for i := range drafts {
			drafts[i] = jobNamed("")
			drafts[i].UID, drafts[i].Priority = uid, priority
		}
		if _, err := s.Store.Enqueue(t.Context(), store.Request{UID: uid, Drafts: drafts}); err != nil {
			t.Fatal(err)
		}
	}
	why := func(id string) control.Why {
		w, err := s.Why(asPeer(t, ownerUID, control.RightSubmit), control.WhyParams{ID: control.JobID(id)})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	put(third, 1, 5)
	j := jobNamed("mine")
	j.Priority = 5
	s.enqueueJobs(t, j)
	put(other, 2, 14)
	put(other, 1, 15)
	put(other, 1, 5) // this job was enqueued later
	want := []string{fmt.Sprintf("3 from %d because of higher priority (up to 15)", other),
		fmt.Sprintf("1 from %d because of longer waiting", third)}
	w := why("mine")
	var got []string
	for _, a := range w.AheadByUser {
		got = append(got, a.Text)
	}
	if w.JobsAhead == nil || *w.JobsAhead != 4 || !slices.Equal(got, want) {
		t.Errorf("of %v jobs: %q, want %q", w.JobsAhead, got, want)
	}
	j = jobNamed("mine2")
	j.Priority = 5
	s.enqueueJobs(t, j)
	put(third, 1, 5) // this job was enqueued later too, but it is its user's turn
	want = []string{fmt.Sprintf("4 from %d because of higher priority (up to 15)", other),
		fmt.Sprintf("2 from %d because users take turns", third),
		fmt.Sprintf("1 from %d because of longer waiting", ownerUID)}
	got = nil
	for _, a := range why("mine2").AheadByUser {
		got = append(got, a.Text)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	put(other, store.MaxScreenRows, 15)
	if w = why("mine"); w.JobsAhead != nil || w.AheadAtLeast != store.MaxScreenRows || len(w.AheadByUser) != 1 ||
		w.AheadByUser[0].Jobs != store.MaxScreenRows {
		t.Errorf("after more jobs than are counted: %+v", w)
	}
	raw, err := json.Marshal(w)
	if err != nil || !strings.Contains(string(raw),
		fmt.Sprintf(`"ahead":null,"ahead_at_least":%d,"ahead_by_user":[{`, store.MaxScreenRows)) {
		t.Errorf("in JSON: %s, %v", raw, err)
	}
}

// If a job of the same priority starts first because it was enqueued earlier, API.Why returns the reason
// "longer waiting". It does not return this reason if priority alone orders the jobs.
func TestWhyComparesHowLongJobsWait(t *testing.T) {
	const other = ownerUID + 1
	for _, order := range []queue.Order{{Scheduling: queue.ByArrival}, {Scheduling: queue.ByAging,
		AgingInterval: time.Minute},
		{Scheduling: queue.ByAging, AgingUnit: queue.AgingByEnqueues}} {
		s := newStoreRig(t)
		if err := s.Store.SetOrder(t.Context(), order); err != nil {
			t.Fatal(err)
		}
		theirs, mine := jobNamed("theirs"), jobNamed("mine")
		theirs.UID = other
		for _, j := range []queue.Job{theirs, mine} {
			if _, err := s.Store.Enqueue(t.Context(), store.Request{UID: j.UID, Drafts: []queue.Job{j}}); err != nil {
				t.Fatal(err)
			}
		}
		w, err := s.Why(asPeer(t, ownerUID, control.RightSubmit), control.WhyParams{ID: "mine"})
		if want := fmt.Sprintf("1 from %d because of longer waiting", other); err != nil || len(w.AheadByUser) != 1 ||
			w.AheadByUser[0].Text != want {
			t.Errorf("%+v: %+v, %v; want %q", order, w.AheadByUser, err, want)
		}
	}
}
