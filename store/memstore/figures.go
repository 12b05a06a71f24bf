package memstore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// sample is the start or the end of an attempt, with the minute in which it was recorded.
type sample struct {
	minute queue.Millis
	queue  string      // name under which the minute counts it
	end    queue.State // state of the job after the attempt; 0 for a start
	took   time.Duration
}

// usual is the typical run time of a command, identified by its fingerprint.
type usual struct {
	fingerprint uint64
	store.Estimate
}

// measure records a start with its wait, or an end with its run time.
func (s *Store) measure(j *job, end queue.State, from, to, now queue.Millis) {
	m := sample{minute: store.Minute.Floor(now), queue: j.Queue, end: end, took: max(0, time.Duration(to-from)*time.Millisecond)}
	named := map[string]bool{}
	for _, other := range s.samples {
		if other.minute == m.minute && !s.stands(other.queue) {
			named[other.queue] = true
		}
	}
	if !s.stands(m.queue) && !named[m.queue] && len(named) >= store.MaxNamed {
		m.queue = store.OtherQueues
	}
	s.samples = append(s.samples, m)
}

// measureEnd records the end of an attempt, and its start if it was not reported before. j is the job before
// the end.
func (s *Store) measureEnd(j *job, e *store.Settlement, now queue.Millis) {
	a := &e.Attempt
	if !e.Decision.Started {
		return
	}
	if j.State != queue.Processing {
		s.measure(j, 0, max(j.DueAt, j.Since), a.StartedAt, now)
	}
	s.measure(j, e.Decision.State, a.StartedAt, a.EndedAt, now)
	s.learn(e.Fingerprint, time.Duration(a.EndedAt-a.StartedAt)*time.Millisecond)
}

// stands reports whether a queue always has separate statistics, however many queues there are.
func (s *Store) stands(name string) bool {
	_, ruled := s.queues[name]
	return ruled || name == queue.DefaultQueue || name == store.OtherQueues
}

// Stats sums up the samples of the selected periods.
func (s *Store) Stats(ctx context.Context, f store.StatsFilter) (out store.Stats, err error) {
	if f.Ever {
		f = store.StatsFilter{Ever: true}
	}
	err = s.read(ctx, func() error {
		out.Grain, out.Since, out.Until = f.Range(s.now())
		periods := map[queue.Millis]map[string]*store.Figures{}
		for _, m := range s.samples {
			at := out.Grain.Floor(m.minute)
			if f.Ever {
				at = 0
			} else if at < out.Since || at >= out.Until {
				continue
			}
			if periods[at] == nil {
				periods[at] = map[string]*store.Figures{}
			}
			of := periods[at][m.queue]
			if of == nil {
				of = new(store.Figures)
				periods[at][m.queue] = of
			}
			if m.end == 0 {
				of.Begin(m.took)
			} else {
				of.End(m.end, m.took)
			}
		}
		queues := map[string]*store.Figures{}
		for _, at := range slices.Sorted(maps.Keys(periods)) {
			all := store.PeriodFigures{At: at}
			for name, of := range periods[at] {
				if f.Queue != "" && name != f.Queue {
					continue
				}
				all.Add(of)
				if queues[name] == nil {
					queues[name] = new(store.Figures)
				}
				queues[name].Add(of)
			}
			if f.Series && all.Figures != (store.Figures{}) {
				out.Periods = append(out.Periods, all)
			}
		}
		for name, of := range queues {
			out.Queues = append(out.Queues, store.QueueFigures{Queue: name, Figures: *of})
		}
		last := func(q store.QueueFigures) int {
			if q.Queue == store.OtherQueues {
				return 1
			}
			return 0
		}
		slices.SortFunc(out.Queues, func(a, b store.QueueFigures) int {
			return cmp.Or(cmp.Compare(last(a), last(b)), strings.Compare(a.Queue, b.Queue))
		})
		return nil
	})
	return out, err
}

// learn adds the run time of a completed job.
func (s *Store) learn(fingerprint uint64, run time.Duration) {
	if fingerprint == 0 {
		return
	}
	one := usual{fingerprint: fingerprint}
	if i := slices.IndexFunc(s.usual, func(u usual) bool { return u.fingerprint == fingerprint }); i >= 0 {
		one = s.usual[i]
		s.usual = slices.Delete(s.usual, i, i+1)
	}
	one.Note(max(0, run))
	s.usual = append(s.usual, one)
	s.usual = s.usual[max(0, len(s.usual)-store.MaxEstimates):]
}

// Usual returns the typical run time of a command.
func (s *Store) Usual(fingerprint uint64) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.usual {
		if s.usual[i].fingerprint == fingerprint {
			return s.usual[i].Usual()
		}
	}
	return 0
}
