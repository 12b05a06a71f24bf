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

// statisticsSample is one entry of the statistics: the start or the end of an attempt. recordedMinute is the minute in
// which it was recorded.
type statisticsSample struct {
	recordedMinute queue.UnixMillis
	queue          string      // the job's queue, or store.OtherQueuesName in a minute with many queues
	endState       queue.State // state of the job after the attempt; 0 for a start
	waitOrRunTime  time.Duration
}

// runtimeEstimate is the typical run time of a command. The fingerprint identifies the command.
type runtimeEstimate struct {
	fingerprint uint64
	store.RuntimeEstimate
}

// addAttemptSample adds the start or the end of an attempt to the statistics. The time from startTime to endTime is,
// for a start, the time that the job has waited and, for an end, the run time. For a start, endState is 0.
func (s *Store) addAttemptSample(j *job, endState queue.State, startTime, endTime, now queue.UnixMillis) {
	m := statisticsSample{
		recordedMinute: store.PerMinute.PeriodStart(now),
		queue:          j.Queue,
		endState:       endState,
		waitOrRunTime:  max(0, time.Duration(endTime-startTime)*time.Millisecond),
	}
	separateQueues := map[string]bool{}
	for _, other := range s.statisticsSamples {
		if other.recordedMinute == m.recordedMinute && !s.hasSeparateStats(other.queue) {
			separateQueues[other.queue] = true
		}
	}
	if !s.hasSeparateStats(m.queue) && !separateQueues[m.queue] && len(separateQueues) >= store.MaxQueuesWithStats {
		m.queue = store.OtherQueuesName
	}
	s.statisticsSamples = append(s.statisticsSamples, m)
}

// addAttemptEndSample adds a sample for the end of an attempt. If its start was not reported, it also adds a sample for
// the start. j must still have the state that it had before the end.
func (s *Store) addAttemptEndSample(j *job, settlement *store.Settlement, now queue.UnixMillis) {
	a := &settlement.Attempt
	if !settlement.Decision.RecordsAttempt {
		return
	}
	if j.State != queue.Processing {
		s.addAttemptSample(j, 0, max(j.DueAt, j.AgingSince), a.StartedAt, now)
	}
	s.addAttemptSample(j, settlement.Decision.NextState, a.StartedAt, a.EndedAt, now)
	s.updateRuntimeEstimate(settlement.CommandFingerprint, time.Duration(a.EndedAt-a.StartedAt)*time.Millisecond)
}

// hasSeparateStats reports whether a queue has separate statistics even if many queues exist.
func (s *Store) hasSeparateStats(queueName string) bool {
	_, ruled := s.queueRules[queueName]
	return ruled || queueName == queue.DefaultQueue || queueName == store.OtherQueuesName
}

// Stats returns the sums of the samples in the selected periods.
func (s *Store) Stats(ctx context.Context, f store.StatsFilter) (stats store.Stats, err error) {
	if f.OnlyAllTimeTotals {
		f = store.StatsFilter{OnlyAllTimeTotals: true}
	}
	err = s.runReadTx(ctx, func() error {
		stats.Granularity, stats.Since, stats.Until = f.PeriodRange(s.now())
		periods := map[queue.UnixMillis]map[string]*store.AttemptStatistics{}
		for _, m := range s.statisticsSamples {
			start := stats.Granularity.PeriodStart(m.recordedMinute)
			if f.OnlyAllTimeTotals {
				start = 0
			} else if start < stats.Since || start >= stats.Until {
				continue
			}
			if periods[start] == nil {
				periods[start] = map[string]*store.AttemptStatistics{}
			}
			figures := periods[start][m.queue]
			if figures == nil {
				figures = new(store.AttemptStatistics)
				periods[start][m.queue] = figures
			}
			if m.endState == 0 {
				figures.AddStartedAttempt(m.waitOrRunTime)
			} else {
				figures.AddEndedAttempt(m.endState, m.waitOrRunTime)
			}
		}
		queues := map[string]*store.AttemptStatistics{}
		for _, start := range slices.Sorted(maps.Keys(periods)) {
			sum := store.PeriodStatistics{StartTime: start}
			for name, figures := range periods[start] {
				if f.Queue != "" && name != f.Queue {
					continue
				}
				sum.Add(figures)
				if queues[name] == nil {
					queues[name] = new(store.AttemptStatistics)
				}
				queues[name].Add(figures)
			}
			if f.IncludePeriods && sum.AttemptStatistics != (store.AttemptStatistics{}) {
				stats.Periods = append(stats.Periods, sum)
			}
		}
		for name, figures := range queues {
			stats.Queues = append(stats.Queues, store.QueueStatistics{QueueName: name, AttemptStatistics: *figures})
		}
		last := func(q store.QueueStatistics) int {
			if q.QueueName == store.OtherQueuesName {
				return 1
			}
			return 0
		}
		slices.SortFunc(stats.Queues, func(a, b store.QueueStatistics) int {
			return cmp.Or(cmp.Compare(last(a), last(b)), strings.Compare(a.QueueName, b.QueueName))
		})
		return nil
	})
	return stats, err
}

// updateRuntimeEstimate updates the typical run time of a command with the run time of a completed job.
func (s *Store) updateRuntimeEstimate(fingerprint uint64, runTime time.Duration) {
	if fingerprint == 0 {
		return
	}
	entry := runtimeEstimate{fingerprint: fingerprint}
	i := slices.IndexFunc(s.runtimeEstimates, func(e runtimeEstimate) bool { return e.fingerprint == fingerprint })
	if i >= 0 {
		entry = s.runtimeEstimates[i]
		s.runtimeEstimates = slices.Delete(s.runtimeEstimates, i, i+1)
	}
	entry.AddRuntime(max(0, runTime))
	s.runtimeEstimates = append(s.runtimeEstimates, entry)
	s.runtimeEstimates = s.runtimeEstimates[max(0, len(s.runtimeEstimates)-store.MaxRuntimeEstimates):]
}

// TypicalRuntime returns the typical run time of a command, 0 if it is unknown.
func (s *Store) TypicalRuntime(fingerprint uint64) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.runtimeEstimates {
		if s.runtimeEstimates[i].fingerprint == fingerprint {
			return s.runtimeEstimates[i].TypicalRuntime()
		}
	}
	return 0
}

// Counts returns the number of jobs in each state, and the number of jobs ever enqueued.
func (s *Store) Counts() store.Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.countsLocked()
}

func (s *Store) countsLocked() store.Counts {
	c := store.Counts{JobsEverEnqueued: s.enqueuedTotal, OutputBytes: s.totalOutputBytes()}
	for _, j := range s.jobs {
		c.JobsByState[j.State]++
		if j.UsesQueueRetention {
			c.JobsUnderQueueRetention++
		}
	}
	return c
}
