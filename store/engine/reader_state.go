package engine

import (
	"maps"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// readerState is the state of an engine as its readers see it. It implements reads.State.
type readerState struct{ *Engine }

// Reserved implements reads.State.
func (s readerState) Reserved() map[int64]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	fences := make(map[int64]int64, len(s.reservedJobs))
	for seq, r := range s.reservedJobs {
		fences[seq] = r.Fence
	}
	return fences
}

// listReserved makes a job's lease visible to readers, if it is reserved. The caller holds mu.
func (s *Engine) listReserved(seq int64) {
	if l := s.mem.leases[seq]; l != nil && !l.Running {
		s.reservedJobs[seq] = database.Reservation{Fence: l.Job.Fence, Node: l.Job.Node}
	} else {
		delete(s.reservedJobs, seq)
	}
}

// listAllReserved makes all reserved leases visible to readers. The caller holds mu.
func (s *Engine) listAllReserved() {
	s.reservedJobs = map[int64]database.Reservation{}
	for seq := range s.mem.leases {
		s.listReserved(seq)
	}
}

// WaitingOf implements reads.State.
func (s readerState) WaitingOf(uid int) (waiting int64, counts store.Counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usage[uid].waiting, s.counts
}

// Turns implements reads.State.
func (s readerState) Turns() map[string]map[int]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.publishedTurns)
}
