package store

import (
	"maps"
	"slices"
	"sync"
)

// Watching is a watch on some jobs with one bell for all of them: C gets a value when
// Changed has jobs to tell, and several changes may share one value. It is for one
// goroutine, which stops it at the end.
type Watching struct {
	C <-chan struct{}

	of   *Watchers
	bell chan struct{}
	seqs []int64
	// changed are indexes of seqs that the next Changed tells; told says of each
	// whether it is among them. Both are guarded by the mu of of.
	changed []int32
	told    []bool
}

// Changed lists the jobs that may have changed since the last call. The first call lists
// all of them; a caller that reads them after it misses no change.
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

// Stop ends the watch. It may be called again.
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

// Watchers are the watches of one store. The zero value has none.
type Watchers struct {
	mu    sync.Mutex
	bySeq map[int64][]watched // guarded by mu
}

// watched is a job in a watch: the index of its seq there.
type watched struct {
	by *Watching
	at int32
}

// Watch begins a watch on jobs, by their seqs.
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

// Tell has every watch on one of these jobs know that it has changed.
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

// TellAll has every watch know that each of its jobs may have changed.
func (of *Watchers) TellAll() {
	of.mu.Lock()
	seqs := slices.Collect(maps.Keys(of.bySeq))
	of.mu.Unlock()
	of.Tell(seqs...)
}

func (w *Watching) ring() {
	select {
	case w.bell <- struct{}{}:
	default: // it is rung already
	}
}
