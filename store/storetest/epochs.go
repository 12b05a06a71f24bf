package storetest

import (
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

func laterEpochsAreHigher(r *storeTest) {
	last := int64(0)
	for range 5 {
		epoch, err := r.store.AdvanceEpoch(r.Context())
		r.must(err)
		if epoch <= last {
			r.Fatalf("got epoch %d after %d, want it higher", epoch, last)
		}
		last = epoch
	}
}

func highestJobSeqDoesNotFall(r *storeTest) {
	last := func() int64 {
		left, err := r.store.PreviousSession(r.Context())
		r.must(err)
		return left.HighestJobSeq
	}
	checkEqual(r, "before the first job", last(), 0)
	jobs := r.enqueueAndGet(newDraft(), newDraft())
	checkEqual(r, "with jobs", last(), jobs[1].Seq)
	r.must(r.store.ChangeJob(r.Context(), jobs[1].Seq, store.JobChange{Verb: queue.VerbCancel}))
	r.must(r.store.ChangeJob(r.Context(), jobs[1].Seq, store.JobChange{Verb: queue.VerbRemove}))
	checkEqual(r, "after the newest job was removed", last(), jobs[1].Seq)
}

// PreviousSession returns the directories that were last passed to StoreRunnerDirs.
func storedRunnerDirsAreReturned(r *storeTest) {
	for _, want := range [][]string{nil, {"/d/runner", "/run/user/7/x"}, {"/d/runner"}, {}} {
		if want != nil {
			r.must(r.store.StoreRunnerDirs(r.Context(), want))
		}
		left, err := r.store.PreviousSession(r.Context())
		r.must(err)
		if !slices.Equal(left.RunnerDirs, want) {
			r.Errorf("got runners %q, want %q", left.RunnerDirs, want)
		}
	}
}

func leasedJobsAreListed(r *storeTest) {
	r.enqueueAndGet(newDraft(), newDraft(), newDraft(), newDraft())
	jobs := r.claimJobs(3)
	jobs[1] = r.startJob(jobs[1])
	leased, err := r.leasedJobs()
	r.must(err)
	slices.SortFunc(leased, func(a, b queue.Job) int { return int(a.Seq - b.Seq) })
	checkEqual(r, "leased jobs", leased, jobs)
}
