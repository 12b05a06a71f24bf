package store

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/queuectl/queuectl/queue"
)

// Events reads the events of the queue, in the order of their numbers, and notifies callers of new events and
// of changed jobs.
type Events interface {
	// Events lists up to limit events after a sequence number. The changes that the returned events report
	// are already included in Counts.
	Events(ctx context.Context, after int64, limit int) ([]queue.Event, error)
	// LastEvent returns the number of the newest event, or 0 if there was none. The returned channel is
	// closed when a newer event is stored.
	LastEvent() (last int64, newer <-chan struct{})
	// Watch sends hints about changes of some jobs until the watch is stopped.
	Watch(seqs []int64) *JobWatch
}

// JobWatch reports changes of some jobs. C receives a value when ChangedJobs has jobs to return; one value may
// announce several changes. Only one goroutine may use a watch. It must call Stop at the end.
type JobWatch struct {
	C <-chan struct{}

	watchers *Watchers
	notify   chan struct{}
	seqs     []int64 // the watched jobs
	// changed lists the jobs that the next ChangedJobs returns, and isChanged contains the same jobs. Both fields
	// are guarded by watchers.mu.
	changed   []int64
	isChanged map[int64]bool
}

// ChangedJobs returns the jobs that may have changed since the last call. The first call returns all jobs, so a
// caller that reads each returned job misses no change.
func (w *JobWatch) ChangedJobs() []int64 {
	w.watchers.mu.Lock()
	defer w.watchers.mu.Unlock()
	seqs := w.changed
	w.changed = nil
	for _, seq := range seqs {
		delete(w.isChanged, seq)
	}
	return seqs
}

// Stop ends the watch. Further calls have no effect.
func (w *JobWatch) Stop() {
	w.watchers.mu.Lock()
	defer w.watchers.mu.Unlock()
	bySeq := w.watchers.bySeq
	for _, seq := range w.seqs {
		bySeq[seq] = slices.DeleteFunc(bySeq[seq], func(other *JobWatch) bool { return other == w })
		if len(bySeq[seq]) == 0 {
			delete(bySeq, seq)
		}
	}
}

// Watchers contains the watches of one store. The zero value contains no watches.
type Watchers struct {
	mu    sync.Mutex
	bySeq map[int64][]*JobWatch // guarded by mu
}

// Watch starts a watch on the jobs with the given seqs.
func (ws *Watchers) Watch(seqs []int64) *JobWatch {
	w := &JobWatch{
		watchers:  ws,
		notify:    make(chan struct{}, 1),
		seqs:      slices.Compact(slices.Sorted(slices.Values(seqs))),
		isChanged: map[int64]bool{},
	}
	w.C = w.notify
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.bySeq == nil {
		ws.bySeq = map[int64][]*JobWatch{}
	}
	for _, seq := range w.seqs {
		ws.bySeq[seq] = append(ws.bySeq[seq], w)
		w.markChangedLocked(seq)
	}
	return w
}

// Notify notifies the watches of these jobs that the jobs have changed.
func (ws *Watchers) Notify(seqs ...int64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, seq := range seqs {
		for _, w := range ws.bySeq[seq] {
			w.markChangedLocked(seq)
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

// markChangedLocked adds a job to those that the next call of ChangedJobs returns.
func (w *JobWatch) markChangedLocked(seq int64) {
	if !w.isChanged[seq] {
		w.isChanged[seq] = true
		w.changed = append(w.changed, seq)
	}
	queue.TrySend(w.notify, struct{}{})
}
