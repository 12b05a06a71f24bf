package storetest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// trimBothStoresUntilDone calls step with each store until step reports that it has nothing more to do.
func (w *comparisonWalk) trimBothStoresUntilDone(step func(store.Store) (more bool, err error)) {
	w.Helper()
	w.applyToBothStores(func(s store.Store) (err error) {
		for more := true; more && err == nil; {
			more, err = step(s)
		}
		return err
	})
}

// purgeBothStores removes ended jobs from both stores and then compares which jobs still exist.
func (w *comparisonWalk) purgeBothStores() {
	w.applyDueChangesInBoth()
	ended := []queue.State{queue.Completed, queue.Cancelled, queue.Dead}
	// Purge all ended jobs in one call, because the two stores may sort jobs with the same end time differently.
	// EndedBefore is one day ahead of the clock: some jobs may have ended before the clock was set back, so their end
	// times may be in the future.
	before, limit := w.modelStore.Now().Add(24*time.Hour), store.MaxPageRows
	selection := store.EndedJobFilter{States: ended, EndedBefore: before}
	switch w.rng.IntN(4) {
	case 0:
		selection.RetentionQueue = new("")
	case 1:
		selection.RetentionQueue = &walkQueueNames[w.rng.IntN(len(walkQueueNames))]
	}
	switch name := walkQueueNames[w.rng.IntN(len(walkQueueNames))]; w.rng.IntN(6) {
	case 0:
		w.trimBothStoresUntilDone(func(s store.Store) (bool, error) { return s.TrimEndedJobs(w.Context(), name, 0, limit) })
	case 1:
		w.trimBothStoresUntilDone(func(s store.Store) (bool, error) { return s.TrimEndedJobs(w.Context(), "", 0, limit) })
	case 2:
		w.trimBothStoresUntilDone(func(s store.Store) (bool, error) { return s.TrimQueueOutputs(w.Context(), name, 0) })
	case 3:
		w.trimBothStoresUntilDone(func(s store.Store) (bool, error) { return s.TrimOutputs(w.Context(), 0) })
	default:
		n, m := callBothStores(w, func(s store.Store) (int, error) {
			return s.PurgeEndedJobs(w.Context(), selection, limit, nil)
		})
		if n != m {
			w.Errorf("step %d: %d jobs were purged, want %d", w.step, n, m)
		}
	}
	keeps, want := callBothStores(w, func(s store.Store) ([]store.OwnRetentionQueue,
		error) {
		return s.QueuesWithOwnRetention(w.Context())
	})
	checkEqual(&storeTest{T: w.T}, fmt.Sprintf("queues with their own retention after step %d", w.step), keeps, want)
	page, _ := callBothStores(w, func(s store.Store) (store.JobRefPage, error) {
		return s.ListJobRefs(w.Context(), store.JobFilter{Limit: store.MaxPageRows})
	})
	w.jobSeqs = w.jobSeqs[:0]
	for _, r := range page.Refs {
		w.jobSeqs = append(w.jobSeqs, r.Seq)
	}
	slices.SortFunc(w.jobSeqs, cmp.Compare[int64])
}
