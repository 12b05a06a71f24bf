package store

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/queuectl/queuectl/queue"
)

// Events reads the events of the queue, in the order of their numbers, and notifies callers of new events and
// of changes of jobs.
type Events interface {
	// Events lists up to limit events whose number is above afterSeq, oldest first. The result of Counts already includes
	// the changes that these events report.
	Events(ctx context.Context, afterSeq int64, limit int) ([]queue.Event, error)
	// LastEventSeq returns the number of the newest event, or 0 if no event was ever stored. newerEventStored is
	// closed when a newer event is stored.
	LastEventSeq() (lastSeq int64, newerEventStored <-chan struct{})
	// WatchJobs sends hints about changes of the given jobs until the returned watch is stopped.
	WatchJobs(seqs []int64) *JobWatch
}

// JobWatch reports changes of some jobs. C receives a value when ChangedJobs has jobs to return. One value may announce
// several changes. Only one goroutine may use a JobWatch, and it must call Stop in the end.
type JobWatch struct {
	C <-chan struct{}

	allWatches  *JobWatches
	changeHints chan struct{}
	watchedSeqs []int64 // the watched jobs
	// changedSeqs and changedSeqSet hold the same jobs, which the next ChangedJobs returns. Both are guarded by
	// watchers.mu.
	changedSeqs   []int64
	changedSeqSet map[int64]bool
}

// ChangedJobs returns the jobs that may have changed since the last call. The first call returns all jobs, so a
// caller that reads each returned job misses no change.
func (w *JobWatch) ChangedJobs() []int64 {
	w.allWatches.mu.Lock()
	defer w.allWatches.mu.Unlock()
	seqs := w.changedSeqs
	w.changedSeqs = nil
	for _, seq := range seqs {
		delete(w.changedSeqSet, seq)
	}
	return seqs
}

// Stop ends the watch. Further calls have no effect.
func (w *JobWatch) Stop() {
	w.allWatches.mu.Lock()
	defer w.allWatches.mu.Unlock()
	bySeq := w.allWatches.watchesBySeq
	for _, seq := range w.watchedSeqs {
		bySeq[seq] = slices.DeleteFunc(bySeq[seq], func(other *JobWatch) bool { return other == w })
		if len(bySeq[seq]) == 0 {
			delete(bySeq, seq)
		}
	}
}

// JobWatches contains the watches of one store. The zero value contains no watches.
type JobWatches struct {
	mu           sync.Mutex
	watchesBySeq map[int64][]*JobWatch // guarded by mu
}

// WatchJobs starts a watch on the jobs with the given seqs.
func (ws *JobWatches) WatchJobs(seqs []int64) *JobWatch {
	w := &JobWatch{
		allWatches:    ws,
		changeHints:   make(chan struct{}, 1),
		watchedSeqs:   slices.Compact(slices.Sorted(slices.Values(seqs))),
		changedSeqSet: map[int64]bool{},
	}
	w.C = w.changeHints
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.watchesBySeq == nil {
		ws.watchesBySeq = map[int64][]*JobWatch{}
	}
	for _, seq := range w.watchedSeqs {
		ws.watchesBySeq[seq] = append(ws.watchesBySeq[seq], w)
		w.markChangedLocked(seq)
	}
	return w
}

// NotifyOfChangedJobs notifies the watches of the given jobs that these jobs have changed.
func (ws *JobWatches) NotifyOfChangedJobs(seqs ...int64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, seq := range seqs {
		for _, w := range ws.watchesBySeq[seq] {
			w.markChangedLocked(seq)
		}
	}
}

// NotifyAllWatches notifies all watches that each of their jobs may have changed.
func (ws *JobWatches) NotifyAllWatches() {
	ws.mu.Lock()
	seqs := slices.Collect(maps.Keys(ws.watchesBySeq))
	ws.mu.Unlock()
	ws.NotifyOfChangedJobs(seqs...)
}

// markChangedLocked adds a job to those that the next call of ChangedJobs returns.
func (w *JobWatch) markChangedLocked(seq int64) {
	if !w.changedSeqSet[seq] {
		w.changedSeqSet[seq] = true
		w.changedSeqs = append(w.changedSeqs, seq)
	}
	queue.TrySend(w.changeHints, struct{}{})
}
