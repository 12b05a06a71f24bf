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
	log             *slog.Logger
	byID            map[queue.Lease]*lease
	addedLeaseCount int64            // number of leases ever added
	byJobSeq        map[int64]*lease // the leases in byID, by job number
	// endWatcherCountsByJobSeq contains the number of callers that watch a job, by job number. Runners send the results
	// of watched jobs immediately.
	endWatcherCountsByJobSeq map[int64]int
	// closed at the next change of the leases; notifyChangeLocked closes and replaces it
	changeSignal chan struct{}
}

// newLeases returns an empty collection of leases.
func newLeases(log *slog.Logger) leases {
	return leases{
		log: log, byID: map[queue.Lease]*lease{}, byJobSeq: map[int64]*lease{},
		endWatcherCountsByJobSeq: map[int64]int{}, changeSignal: make(chan struct{}),
	}
}

// addLeaseLocked adds the lease of a claimed job. initialPhase is the phase in which the lease begins.
func (s *leases) addLeaseLocked(j *queue.Job, initialPhase leasePhase) *lease {
	s.addedLeaseCount++
	h := newLease(j, s.addedLeaseCount, initialPhase, s.log)
	s.byID[j.Lease()], s.byJobSeq[j.Seq] = h, h
	return h
}

// removeLeaseLocked applies lastEvent to a lease and removes the lease. It wakes all callers that wait for the end of
// the lease.
func (s *leases) removeLeaseLocked(id queue.Lease, lastEvent leaseEvent) {
	h := s.byID[id]
	if h == nil {
		return
	}
	h.advancePhaseLocked(lastEvent) // even if the event does not fit, remove the lease, because the store has ended it
	delete(s.byID, id)
	if s.byJobSeq[id.Seq] == h {
		delete(s.byJobSeq, id.Seq)
	}
	close(h.endStoredSignal)
	s.notifyChangeLocked()
}

// notifyChangeLocked wakes the callers that wait for a change of the leases, such as the end of a lease.
func (s *leases) notifyChangeLocked() {
	close(s.changeSignal)
	s.changeSignal = make(chan struct{})
}

// undecidedLeaseCountLocked returns the number of open leases. A lease is open until the pool has decided how it ends,
// or that its job returns to the queue.
func (s *leases) undecidedLeaseCountLocked() (n int) {
	for _, h := range s.byID {
		if !h.phase.isEndDecided() {
			n++
		}
	}
	return n
}

// selectLeasesLocked returns the leases that the callback accepts, in any order.
func (s *leases) selectLeasesLocked(matches func(*lease) bool) (selected []*lease) {
	for _, h := range s.byID {
		if matches(h) {
			selected = append(selected, h)
		}
	}
	return selected
}

// anyLeaseMatchesLocked reports whether the callback accepts any lease.
func (s *leases) anyLeaseMatchesLocked(matches func(*lease) bool) bool {
	for _, h := range s.byID {
		if matches(h) {
			return true
		}
	}
	return false
}

// startableLeasesLocked returns the leases whose jobs may still start, because they are not known to have started
// or ended. The leases are in the order of their claims.
func (s *leases) startableLeasesLocked() []*lease {
	list := s.selectLeasesLocked(func(h *lease) bool { return h.phase.mayStart() })
	slices.SortFunc(list, func(a, b *lease) int { return cmp.Compare(a.claimNumber, b.claimNumber) })
	return list
}

// leasesOldestFirstLocked returns all leases, those with the earliest sentAt first. Leases with the same sentAt
// are sorted by job number, because the clock may be too coarse to distinguish leases of one claim.
func (s *leases) leasesOldestFirstLocked() []*lease {
	return slices.SortedFunc(maps.Values(s.byID), func(a, b *lease) int {
		return cmp.Or(a.claimedOrSentAt.Compare(b.claimedOrSentAt), cmp.Compare(a.job.Seq, b.job.Seq))
	})
}

// anyLeaseOnRunnerLocked reports whether a connected runner has any job of this service.
func (s *leases) anyLeaseOnRunnerLocked(conn *runnerConn) bool {
	return s.anyLeaseMatchesLocked(func(h *lease) bool { return h.runnerConn == conn })
}

// orphanAttemptsOfRunnerLocked returns the attempts that may belong to the dead runner in the directory runnerDir.
// certainAttempts lists the attempts that were certainly sent to this runner. possibleAttempts lists these attempts
// and, in addition, all attempts whose runner is unknown; a living runner may be running some of these additional
// attempts.
func (s *leases) orphanAttemptsOfRunnerLocked(runnerDir string) (possibleAttempts, certainAttempts []wire.Attempt) {
	for _, h := range s.byID {
		isKnown := h.isOrphanOfRunnerLocked(runnerDir)
		if !isKnown && !h.isOrphanOfRunnerLocked("") {
			continue
		}
		a := wire.Attempt{Lease: h.wireLease(), PID: int64(h.attempt.pid), StartedAtMillis: int64(h.attempt.startedAt)}
		possibleAttempts = append(possibleAttempts, a)
		if isKnown {
			certainAttempts = append(certainAttempts, a)
		}
	}
	return possibleAttempts, certainAttempts
}

// anyOrphanOfRunnersLocked reports whether any lease may belong to a disconnected runner with one of these
// directories.
func (s *leases) anyOrphanOfRunnersLocked(runnerDirs []string) bool {
	return s.anyLeaseMatchesLocked(func(h *lease) bool {
		return h.runnerConn == nil && !h.phase.wasNeverSent() &&
			(h.runnerDir == "" || slices.Contains(runnerDirs, h.runnerDir))
	})
}

// leasesAwaitingRunnerLocked returns the leases whose jobs wait for the start of a separate runner and match the
// callback.
func (s *leases) leasesAwaitingRunnerLocked(matches func(*queue.Job) bool) []*lease {
	return s.selectLeasesLocked(func(h *lease) bool { return h.phase == phaseAwaitingRunner && matches(&h.job) })
}

// endLeasesAwaitingRunnerLocked ends leases for which a separate runner could not be started: those that
// leasesAwaitingRunnerLocked returns. It returns their jobs.
func (s *leases) endLeasesAwaitingRunnerLocked(matches func(*queue.Job) bool) (jobs []queue.Job) {
	for _, h := range s.leasesAwaitingRunnerLocked(matches) {
		if h.advancePhaseLocked(eventEndDecided) {
			jobs = append(jobs, h.job)
		}
	}
	return jobs
}
