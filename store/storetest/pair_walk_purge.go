package storetest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// trimUntilDone calls step with each store until step reports that it has nothing more to do.
func (w *pairWalk) trimUntilDone(step func(store.Store) (more bool, err error)) {
	w.Helper()
	w.doBoth(func(s store.Store) (err error) {
		for more := true; more && err == nil; {
			more, err = step(s)
		}
		return err
	})
}

// purge removes ended jobs from both stores and then compares which jobs still exist.
func (w *pairWalk) purge() {
	w.promote()
	ended := []queue.State{queue.Completed, queue.Cancelled, queue.Dead}
	// Purge all ended jobs in one call, because the stores may sort jobs with the same end time differently. The
	// cutoff is one day ahead, because some jobs may have ended before the clock was set back.
	before, limit := w.model.Now().Add(24*time.Hour), store.MaxPageRows
	selection := store.EndedFilter{States: ended, Cutoff: before}
	switch w.rng.IntN(4) {
	case 0:
		selection.RetentionQueue = new("")
	case 1:
		selection.RetentionQueue = &queues[w.rng.IntN(len(queues))]
	}
	switch name := queues[w.rng.IntN(len(queues))]; w.rng.IntN(6) {
	case 0:
		w.trimUntilDone(func(s store.Store) (bool, error) { return s.TrimJobs(w.Context(), name, 0, limit) })
	case 1:
		w.trimUntilDone(func(s store.Store) (bool, error) { return s.TrimJobs(w.Context(), "", 0, limit) })
	case 2:
		w.trimUntilDone(func(s store.Store) (bool, error) { return s.TrimQueueOutputs(w.Context(), name, 0) })
	case 3:
		w.trimUntilDone(func(s store.Store) (bool, error) { return s.TrimOutputs(w.Context(), 0) })
	default:
		n, m := askBoth(w, func(s store.Store) (int, error) { return s.Purge(w.Context(), selection, limit, nil) })
		if n != m {
			w.Errorf("step %d: %d jobs were purged, want %d", w.step, n, m)
		}
	}
	keeps, want := askBoth(w, func(s store.Store) ([]store.OwnRetentionQueue,
		error) {
		return s.OwnRetentionQueues(w.Context())
	})
	checkEqual(&rig{T: w.T}, fmt.Sprintf("queues with their own retention after step %d", w.step), keeps, want)
	page, _ := askBoth(w, func(s store.Store) (store.RefPage, error) {
		return s.ListRefs(w.Context(), store.Filter{Limit: store.MaxPageRows})
	})
	w.seqs = w.seqs[:0]
	for _, r := range page.Refs {
		w.seqs = append(w.seqs, r.Seq)
	}
	slices.SortFunc(w.seqs, cmp.Compare[int64])
}
