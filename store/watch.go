package store

import (
	"maps"
	"slices"
	"sync"
)

// JobWatch is a watch on some jobs. C receives a value when ChangedJobs has jobs to return; several changes may
// share one value. One goroutine uses the watch and stops it at the end.
type JobWatch struct {
	C <-chan struct{}

	watchers *Watchers
	notify   chan struct{}
	seqs     []int64
	// changedIndexes contains the indexes in seqs of the jobs that the next ChangedJobs returns. isChanged
	// reports for each index whether changedIndexes contains it. Both fields are guarded by watchers.mu.
	changedIndexes []int32
	isChanged      []bool
}

// ChangedJobs returns the jobs that may have changed since the last call. The first call returns all jobs, so a
// caller that reads each returned job misses no change.
func (w *JobWatch) ChangedJobs() []int64 {
	w.watchers.mu.Lock()
	defer w.watchers.mu.Unlock()
	seqs := make([]int64, len(w.changedIndexes))
	for i, at := range w.changedIndexes {
		seqs[i], w.isChanged[at] = w.seqs[at], false
	}
	w.changedIndexes = w.changedIndexes[:0]
	return seqs
}

// Stop ends the watch. Further calls have no effect.
func (w *JobWatch) Stop() {
	w.watchers.mu.Lock()
	defer w.watchers.mu.Unlock()
	for _, seq := range w.seqs {
		list := w.watchers.bySeq[seq]
		at := slices.IndexFunc(list, func(o watchEntry) bool { return o.watch == w })
		switch {
		case at < 0:
		case len(list) == 1:
			delete(w.watchers.bySeq, seq)
		default:
			w.watchers.bySeq[seq] = slices.Delete(list, at, at+1)
		}
	}
}

// Watchers contains the watches of one store. The zero value has none.
type Watchers struct {
	mu    sync.Mutex
	bySeq map[int64][]watchEntry // guarded by mu
}

// watchEntry is an entry of a job in a watch. index is the position of the job's seq in the watch.
type watchEntry struct {
	watch *JobWatch
	index int32
}

// Watch starts a watch on the jobs with the given seqs.
func (ws *Watchers) Watch(seqs []int64) *JobWatch {
	w := &JobWatch{
		watchers: ws,
		notify:   make(chan struct{}, 1),
		seqs:     slices.Compact(slices.Sorted(slices.Values(seqs))),
	}
	w.C, w.changedIndexes, w.isChanged = w.notify, make([]int32, len(w.seqs)), make([]bool, len(w.seqs))
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.bySeq == nil {
		ws.bySeq = map[int64][]watchEntry{}
	}
	for i, seq := range w.seqs {
		w.changedIndexes[i], w.isChanged[i] = int32(i), true
		ws.bySeq[seq] = append(ws.bySeq[seq], watchEntry{w, int32(i)})
	}
	w.wake()
	return w
}

// Notify notifies the watches of these jobs that the jobs have changed.
func (ws *Watchers) Notify(seqs ...int64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.bySeq) == 0 {
		return
	}
	for _, seq := range seqs {
		for _, o := range ws.bySeq[seq] {
			if !o.watch.isChanged[o.index] {
				o.watch.isChanged[o.index] = true
				o.watch.changedIndexes = append(o.watch.changedIndexes, o.index)
			}
			o.watch.wake()
		}
	}
}

// NotifyAll notifies all watches that each of their jobs may have changed.
func (ws *Watchers) NotifyAll() {
	ws.mu.Lock()
	seqs := slices.Collect(maps.Keys(ws.bySeq))
	ws.mu.Unlock()
	ws.Notify(seqs...)
}

func (w *JobWatch) wake() {
	select {
	case w.notify <- struct{}{}:
	default: // nothing to send: an unread value is already in the channel
	}
}
