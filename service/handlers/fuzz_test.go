package handlers

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// allJobs returns the jobs of a service, newest first.
func (s *testAPI) allJobs(t testing.TB) (jobs []queue.Job) {
	t.Helper()
	for _, id := range s.jobIDs(t) {
		j, err := s.Store.GetJob(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, j)
	}
	return jobs
}

// jobIDs returns the ids of the jobs of a service, newest first.
func (s *testAPI) jobIDs(t testing.TB) (ids []string) {
	t.Helper()
	page, err := s.ListJobs(contextAsPeer(t, 0, control.RightAdmin), control.JobListParams{})
	if err != nil || page.NextCursor != nil {
		t.Fatalf("%v, more: %t", err, page.NextCursor != nil)
	}
	for i := range page.Jobs {
		ids = append(ids, page.Jobs[i].ID)
	}
	return ids
}

// A valid selection contains exactly the jobs that match. Its pages have no gaps and no repeated jobs. If the caller
// may use the verb only on the caller's own jobs, the selection contains only these jobs. An invalid selection causes
// an error.
func FuzzSelection(f *testing.F) {
	for _, seed := range []struct {
		state, label, value, glob string
		older, limit              int64
		right                     bool
	}{{"waiting", "", "", "", 0, 3, true}, {"dead", "k", "v1", "", 0, 1000, true}, {"", "k", "", "*1", 0, 2, false},
		{"", "", "", "[a-b]?", 3_600_000, 7, true}, {"done", "", "", "", 1, 5, false}, {"x", "", "", "", 0, 1, true}} {
		f.Add(seed.state, seed.label, seed.value, seed.glob, seed.older, seed.limit, seed.right)
	}
	s := newSQLiteTestAPI(f)
	var drafts []queue.Job
	for i := range 60 {
		j := draftWithID(fmt.Sprint(string(rune('a'+i%3)), i))
		j.UID = ownerUID + i%2
		if i%4 > 0 {
			j.Labels = map[string]string{"k": fmt.Sprint("v", i%4), "": ""}
		}
		drafts = append(drafts, j)
	}
	s.enqueueJobs(f, drafts...)
	leased := s.claimJobs(f, 20)
	s.endJobs(f, leased[:10], queue.Dead, queue.Attempt{})
	s.endJobs(f, leased[10:], queue.Completed, queue.Attempt{})
	jobs := s.allJobs(f)
	f.Fuzz(func(t *testing.T, state, label, value, glob string, older, limit int64, right bool) {
		peer := contextAsPeer(t, ownerUID, control.RightOperate)
		if !right {
			peer = contextAsPeer(t, ownerUID, control.RightSubmit)
		}
		p := control.JobSelection{IDGlob: glob, DryRun: true}
		if state != "" {
			p.States = control.TextList{state}
		}
		if label != "" {
			p.WithLabels = control.Labels{label: value}
		}
		if older > 0 && older < int64(queue.MaxDuration/time.Millisecond) {
			p.OlderThan = control.Duration(time.Duration(older) * time.Millisecond)
		}
		states, bad := queue.VerbRemove.StatesWithEffect(), error(nil)
		if state != "" {
			states, bad = queue.ParseStates(state)
		}
		match, err := queue.CompileGlob(glob)
		bad = errors.Join(bad, err)
		now := s.Store.Now()
		want := 0
		for i := range jobs {
			j := &jobs[i]
			at := j.CreatedAt
			if j.EndedAt != 0 {
				at = j.EndedAt
			}
			got, labelled := j.Labels[label]
			if bad == nil && slices.Contains(states, j.State) && (label == "" || labelled && got == value) &&
				(right || j.UID == ownerUID) &&
				(glob == "" || match(j.ID)) && (p.OlderThan == 0 || at < now.Add(-time.Duration(p.OlderThan))) {
				want++
			}
		}
		v, err := s.RemoveJobs(peer, control.JobRemoveParams{JobSelection: p})
		switch {
		case !p.UsesFilters() || bad != nil:
			if !errors.Is(err, queue.ErrInvalid) {
				t.Fatalf("%+v: %v, want invalid", p, err)
			}
		case err != nil || v.NextCursor != nil || *v.SelectedCount != want:
			t.Fatalf("%+v: %+v, %v, want %d", p, v, err, want)
		}
		if limit < 1 || limit > 1000 || bad != nil {
			return
		}
		var seen []int64
		list := control.JobListParams{States: p.States, WithLabels: p.WithLabels, PageSize: int(limit)}
		for more := true; more; {
			page, err := s.ListJobs(peer, list)
			if err != nil || len(page.Jobs) > int(limit) {
				t.Fatalf("%+v: %d jobs, %v", list, len(page.Jobs), err)
			}
			for i := range page.Jobs {
				seen = append(seen, -page.Jobs[i].Seq)
			}
			if more = page.NextCursor != nil; more {
				list.Cursor = *page.NextCursor
			}
		}
		for i := range jobs {
			got, labelled := jobs[i].Labels[label]
			if in := (state == "" || slices.Contains(states, jobs[i].State)) &&
				(label == "" || labelled && got == value); in != slices.Contains(seen, -jobs[i].Seq) {
				t.Fatalf("%+v: job %s is listed: %t", list, jobs[i].ID, !in)
			}
		}
		if !slices.IsSorted(seen) || len(slices.Compact(slices.Clone(seen))) != len(seen) {
			t.Fatalf("%+v: %v is not newest first, each once", list, seen)
		}
	})
}
