package store

import (
	"maps"
	"slices"
	"sync"
)

// Watching is a watch on some jobs. C receives a value when Changed has jobs to return; several changes may
// share one value. One goroutine uses the watch and stops it at the end.
type Watching struct {
	C <-chan struct{}

	of   *Watchers
	bell chan struct{}
	seqs []int64
	// changed contains the indexes in seqs of the jobs that the next Changed returns. told reports for each
	// index whether changed contains it. Both are guarded by of.mu.
	changed []int32
	told    []bool
}

// Changed returns the jobs that may have changed since the last call. The first call returns all jobs, so a
// caller that reads each returned job misses no change.
func (w *Watching) Changed() []int64 {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	seqs := make([]int64, len(w.changed))
	for i, at := range w.changed {
		seqs[i], w.told[at] = w.seqs[at], false
	}
	w.changed = w.changed[:0]
	return seqs
}

// Stop ends the watch. Further calls have no effect.
func (w *Watching) Stop() {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	for _, seq := range w.seqs {
		list := w.of.bySeq[seq]
		at := slices.IndexFunc(list, func(o watched) bool { return o.by == w })
		switch {
		case at < 0:
		case len(list) == 1:
			delete(w.of.bySeq, seq)
		default:
			w.of.bySeq[seq] = slices.Delete(list, at, at+1)
		}
	}
}

// Watchers contains the watches of one store. The zero value has none.
type Watchers struct {
	mu    sync.Mutex
	bySeq map[int64][]watched // guarded by mu
}

// watched is an entry of a job in a watch. at is the index of the job's seq in the watch.
type watched struct {
	by *Watching
	at int32
}

// Watch starts a watch on the jobs with the given seqs.
func (of *Watchers) Watch(seqs []int64) *Watching {
	w := &Watching{of: of, bell: make(chan struct{}, 1), seqs: slices.Compact(slices.Sorted(slices.Values(seqs)))}
	w.C, w.changed, w.told = w.bell, make([]int32, len(w.seqs)), make([]bool, len(w.seqs))
	of.mu.Lock()
	defer of.mu.Unlock()
	if of.bySeq == nil {
		of.bySeq = map[int64][]watched{}
	}
	for i, seq := range w.seqs {
		w.changed[i], w.told[i] = int32(i), true
		of.bySeq[seq] = append(of.bySeq[seq], watched{w, int32(i)})
	}
	w.ring()
	return w
}

// Tell notifies the watches of these jobs that the jobs have changed.
func (of *Watchers) Tell(seqs ...int64) {
	of.mu.Lock()
	defer of.mu.Unlock()
	if len(of.bySeq) == 0 {
		return
	}
	for _, seq := range seqs {
		for _, o := range of.bySeq[seq] {
			if !o.by.told[o.at] {
				o.by.told[o.at] = true
				o.by.changed = append(o.by.changed, o.at)
			}
			o.by.ring()
		}
	}
}

// TellAll notifies all watches that each of their jobs may have changed.
func (of *Watchers) TellAll() {
	of.mu.Lock()
	seqs := slices.Collect(maps.Keys(of.bySeq))
	of.mu.Unlock()
	of.Tell(seqs...)
}

func (w *Watching) ring() {
	select {
	case w.bell <- struct{}{}:
	default: // a value is already waiting
	}
}
