package memstore

import (
	"context"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Events lists up to limit events whose number is above afterSeq, oldest first.
func (s *Store) Events(ctx context.Context, afterSeq int64, limit int) (events []queue.Event, err error) {
	err = s.runReadTx(ctx, func() error {
		for _, e := range s.events {
			if e.Seq > afterSeq && len(events) < limit {
				events = append(events, e)
			}
		}
		return nil
	})
	return events, err
}

// LastEventSeq returns the number of the newest event, and a channel that is closed when a newer one is stored.
func (s *Store) LastEventSeq() (lastSeq int64, newerEventStored <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newEventSignal == nil {
		s.newEventSignal = make(chan struct{})
	}
	return s.trimmedEventCount + int64(len(s.events)), s.newEventSignal
}

// WatchJobs returns a watch that sends a hint when one of the given jobs changes.
func (s *Store) WatchJobs(seqs []int64) *store.JobWatch { return s.jobWatchers.WatchJobs(seqs) }
