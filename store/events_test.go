package store

import (
	"slices"
	"testing"
)

// received reports whether a value was waiting in w.C, and removes it from the channel.
func received(w *JobWatch) bool {
	select {
	case <-w.C:
		return true
	default:
		return false
	}
}

// All jobs of a watch share one channel, and one value may announce several changes. The first call of
// ChangedJobs returns all jobs, and each later call returns every changed job once.
func TestManyChangesShareOneValue(t *testing.T) {
	var watchers Watchers
	w := watchers.Watch([]int64{3, 1, 2, 3})
	if got := w.ChangedJobs(); !received(w) || !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("at first: got %v, want all, and the bell", got)
	}
	if got := w.ChangedJobs(); received(w) || len(got) != 0 {
		t.Errorf("of nothing: got %v", got)
	}
	watchers.Notify(3, 4, 3)
	watchers.Notify(1)
	watchers.Notify(3)
	if got := w.ChangedJobs(); !received(w) || received(w) || !slices.Equal(got, []int64{3, 1}) {
		t.Errorf("after changes: got %v, want 3 and 1, and the bell once", got)
	}
	watchers.Notify(3)
	if got := w.ChangedJobs(); !received(w) || !slices.Equal(got, []int64{3}) {
		t.Errorf("after one more: got %v, want 3", got)
	}
}

// A stopped watch leaves no entries behind, and other watches of the same jobs still work.
func TestStoppedWatchesLeaveNothing(t *testing.T) {
	var watchers Watchers
	first, second := watchers.Watch([]int64{1, 2}), watchers.Watch([]int64{2, 3})
	for _, w := range []*JobWatch{first, second} {
		w.ChangedJobs()
		received(w)
	}
	first.Stop()
	first.Stop()
	watchers.Notify(1, 2, 3)
	if got := first.ChangedJobs(); received(first) || len(got) != 0 {
		t.Errorf("the stopped one: got %v", got)
	}
	if got := second.ChangedJobs(); !received(second) || !slices.Equal(got, []int64{2, 3}) {
		t.Errorf("the other one: got %v, want 2 and 3", got)
	}
	second.Stop()
	if len(watchers.watchesBySeq) != 0 {
		t.Errorf("%v is left", watchers.watchesBySeq)
	}
}
