package storetest

import (
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

func epochsRise(r *rig) {
	last := int64(0)
	for range 5 {
		epoch, err := r.s.NextEpoch(r.Context())
		r.must(err)
		if epoch <= last {
			r.Fatalf("got epoch %d after %d, want it higher", epoch, last)
		}
		last = epoch
	}
}

func lastSeqDoesNotFall(r *rig) {
	last := func() int64 {
		left, err := r.s.PreviousSession(r.Context())
		r.must(err)
		return left.LastSeq
	}
	checkEqual(r, "before the first job", last(), 0)
	jobs := r.enqueueAndGet(draft(), draft())
	checkEqual(r, "with jobs", last(), jobs[1].Seq)
	r.must(r.s.Change(r.Context(), jobs[1].Seq, store.Change{Verb: queue.VerbCancel}))
	r.must(r.s.Change(r.Context(), jobs[1].Seq, store.Change{Verb: queue.VerbRemove}))
	checkEqual(r, "after the newest job was removed", last(), jobs[1].Seq)
}

// PreviousSession returns the directories that were last passed to StoreRunnerDirs.
func runnerDirsAreReturned(r *rig) {
	for _, want := range [][]string{nil, {"/d/runner", "/run/user/7/x"}, {"/d/runner"}, {}} {
		if want != nil {
			r.must(r.s.StoreRunnerDirs(r.Context(), want))
		}
		left, err := r.s.PreviousSession(r.Context())
		r.must(err)
		if !slices.Equal(left.RunnerDirs, want) {
			r.Errorf("got runners %q, want %q", left.RunnerDirs, want)
		}
	}
}
