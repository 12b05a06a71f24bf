package store

import (
	"slices"
	"testing"
)

// takeHint reports whether a value was waiting in w.C, and removes it from the channel.
func takeHint(w *JobWatch) bool {
	select {
	case <-w.C:
		return true
	default:
		return false
	}
}

// All jobs of a watch share one channel. One value in the channel may announce several changes. The first call of
// ChangedJobs returns all jobs, and each later call returns every changed job once.
func TestJobWatchMergesManyChanges(t *testing.T) {
	var watchers JobWatches
	w := watchers.WatchJobs([]int64{3, 1, 2, 3})
	if got := w.ChangedJobs(); !takeHint(w) || !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("at first: got %v, want all, and the bell", got)
	}
	if got := w.ChangedJobs(); takeHint(w) || len(got) != 0 {
		t.Errorf("of nothing: got %v", got)
	}
	watchers.NotifyOfChangedJobs(3, 4, 3)
	watchers.NotifyOfChangedJobs(1)
	watchers.NotifyOfChangedJobs(3)
	if got := w.ChangedJobs(); !takeHint(w) || takeHint(w) || !slices.Equal(got, []int64{3, 1}) {
		t.Errorf("after changes: got %v, want 3 and 1, and the bell once", got)
	}
	watchers.NotifyOfChangedJobs(3)
	if got := w.ChangedJobs(); !takeHint(w) || !slices.Equal(got, []int64{3}) {
		t.Errorf("after one more: got %v, want 3", got)
	}
}

// A stopped watch leaves no entries behind, and other watches of the same jobs still work.
func TestStoppedJobWatchLeavesNoEntries(t *testing.T) {
	var watchers JobWatches
	first, second := watchers.WatchJobs([]int64{1, 2}), watchers.WatchJobs([]int64{2, 3})
	for _, w := range []*JobWatch{first, second} {
		w.ChangedJobs()
		takeHint(w)
	}
	first.Stop()
	first.Stop()
	watchers.NotifyOfChangedJobs(1, 2, 3)
	if got := first.ChangedJobs(); takeHint(first) || len(got) != 0 {
		t.Errorf("the stopped one: got %v", got)
	}
	if got := second.ChangedJobs(); !takeHint(second) || !slices.Equal(got, []int64{2, 3}) {
		t.Errorf("the other one: got %v, want 2 and 3", got)
	}
	second.Stop()
	if len(watchers.watchesBySeq) != 0 {
		t.Errorf("%v is left", watchers.watchesBySeq)
	}
}
