package worker

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
)

// leases contains the leases of this service. The pool's mu guards all fields except log.
type leases struct {
	log        *slog.Logger
	byLease    map[queue.Lease]*lease
	claimCount int64            // number of leases ever added
	bySeq      map[int64]*lease // the leases in byLease, by job number
	// watcherCounts contains the number of callers that watch a job, by job number. Runners send the results
	// of watched jobs immediately.
	watcherCounts map[int64]int
	changeSignal  chan struct{} // closed at the next change of the leases; notifyChangeLocked closes and replaces it
}

// newLeases returns an empty collection of leases.
func newLeases(log *slog.Logger) leases {
	return leases{
		log: log, byLease: map[queue.Lease]*lease{}, bySeq: map[int64]*lease{},
		watcherCounts: map[int64]int{}, changeSignal: make(chan struct{}),
	}
}

// addLocked adds the lease of a claimed job. initial is its first phase.
func (s *leases) addLocked(j *queue.Job, initial leasePhase) *lease {
	s.claimCount++
	h := newLease(j, s.claimCount, initial, s.log)
	s.byLease[j.Lease()], s.bySeq[j.Seq] = h, h
	return h
}

// removeLocked applies the last event to a lease and removes it. It wakes all callers that wait for the end
// of the lease.
func (s *leases) removeLocked(id queue.Lease, last leaseEvent) {
	h := s.byLease[id]
	if h == nil {
		return
	}
	h.advanceLocked(last) // even if the event does not fit, remove the lease, because the store has ended it
	delete(s.byLease, id)
	if s.bySeq[id.Seq] == h {
		delete(s.bySeq, id.Seq)
	}
	close(h.storedSignal)
	s.notifyChangeLocked()
}

// notifyChangeLocked wakes the callers that wait for a change of the leases, such as the end of one.
func (s *leases) notifyChangeLocked() {
	close(s.changeSignal)
	s.changeSignal = make(chan struct{})
}

// countOpenLocked returns the number of open leases. A lease is open until the pool has decided how it ends,
// or that its job returns to the queue.
func (s *leases) countOpenLocked() (n int) {
	for _, h := range s.byLease {
		if !h.phase.isEndDecided() {
			n++
		}
	}
	return n
}

// selectLocked returns the leases that the callback accepts, in any order.
func (s *leases) selectLocked(matches func(*lease) bool) (selected []*lease) {
	for _, h := range s.byLease {
		if matches(h) {
			selected = append(selected, h)
		}
	}
	return selected
}

// anyLocked reports whether the callback accepts any lease.
func (s *leases) anyLocked(matches func(*lease) bool) bool {
	for _, h := range s.byLease {
		if matches(h) {
			return true
		}
	}
	return false
}

// startableLocked returns the leases whose jobs may still start, because they are not known to have started
// or ended. The leases are in the order of their claims.
func (s *leases) startableLocked() []*lease {
	list := s.selectLocked(func(h *lease) bool { return h.phase.mayStart() })
	slices.SortFunc(list, func(a, b *lease) int { return cmp.Compare(a.claimNumber, b.claimNumber) })
	return list
}

// oldestFirstLocked returns all leases, those with the earliest sentAt first. Leases with the same sentAt
// are sorted by job number, because the clock may be too coarse to distinguish leases of one claim.
func (s *leases) oldestFirstLocked() []*lease {
	return slices.SortedFunc(maps.Values(s.byLease), func(a, b *lease) int {
		return cmp.Or(a.sentAt.Compare(b.sentAt), cmp.Compare(a.job.Seq, b.job.Seq))
	})
}

// anyHeldByLocked reports whether a connected runner has any job of this service.
func (s *leases) anyHeldByLocked(conn *runnerConn) bool {
	return s.anyLocked(func(h *lease) bool { return h.conn == conn })
}

// orphansOfLocked returns the attempts that may belong to the dead runner in the directory dir. knownAttempts
// lists those that were certainly sent to this runner. attempts lists these and all attempts whose runner is
// unknown, although another, living runner may run the latter.
func (s *leases) orphansOfLocked(dir string) (attempts, knownAttempts []wire.Attempt) {
	for _, h := range s.byLease {
		isKnown := h.isOrphanInLocked(dir)
		if !isKnown && !h.isOrphanInLocked("") {
			continue
		}
		a := wire.Attempt{Lease: h.wireLease(), PID: int64(h.attempt.pid), StartedAtMillis: int64(h.attempt.startedAt)}
		attempts = append(attempts, a)
		if isKnown {
			knownAttempts = append(knownAttempts, a)
		}
	}
	return attempts, knownAttempts
}

// anyOrphanInLocked reports whether any lease may belong to a disconnected runner with one of these
// directories.
func (s *leases) anyOrphanInLocked(dirs []string) bool {
	return s.anyLocked(func(h *lease) bool {
		return h.conn == nil && !h.phase.neverSent() && (h.dir == "" || slices.Contains(dirs, h.dir))
	})
}

// awaitingRunnerLocked returns the leases whose jobs wait for the start of a separate runner and match the
// callback.
func (s *leases) awaitingRunnerLocked(matches func(*queue.Job) bool) []*lease {
	return s.selectLocked(func(h *lease) bool { return h.phase == phaseAwaitingRunner && matches(&h.job) })
}

// endAwaitingRunnerLocked is called if a separate runner could not be started. It decides the end of the
// leases that awaitingRunnerLocked returns, and returns their jobs.
func (s *leases) endAwaitingRunnerLocked(matches func(*queue.Job) bool) (jobs []queue.Job) {
	for _, h := range s.awaitingRunnerLocked(matches) {
		if h.advanceLocked(eventEndDecided) {
			jobs = append(jobs, h.job)
		}
	}
	return jobs
}
