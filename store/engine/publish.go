package engine

import "github.com/queuectl/queuectl/queue"

// publish makes the result of the transaction visible to readers, and notifies watchers. It runs after the
// commit.
func (t *Tx) publish(grant *claimResult) {
	s := t.s
	if t.earliestTimer != 0 && (s.mem.nextDue == 0 || t.earliestTimer < s.mem.nextDue) {
		s.mem.nextDue = t.earliestTimer
		Hint(s.dueSooner)
	}
	for _, f := range t.afterCommit {
		f()
	}
	s.runtimeEstimates.Note(t.measurements)
	s.jobsReadied = false
	foreign := s.foreignChanges
	if s.foreignChanges = (foreignChanges{}); foreign.any {
		defer s.watchers.NotifyAll()
	} else {
		defer s.watchers.Notify(append(t.touchedJobs, foreign.seqs...)...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if grant != nil && s.waiter == grant.waiter {
		s.waiter = nil
	}
	if t.cutShort != nil {
		Hint(t.cutShort.retry)
	}
	s.counts.States, s.counts.EnqueuedTotal = s.mem.counts, s.mem.enqueuedTotal
	s.counts.Reranking = s.mem.ranking.state != 0
	s.counts.Outputs, s.counts.UnderOwnRetention = s.mem.outputs, s.mem.keptJobs
	for uid := range t.users {
		s.noteUsageLocked(uid)
	}
	if order := s.mem.order; order != *s.order.Load() {
		s.order.Store(&order)
	}
	if last := s.mem.nextEvent - 1; last != s.lastEvent {
		s.lastEvent = last
		if s.newEvent != nil {
			close(s.newEvent)
			s.newEvent = nil
		}
	}
	if foreign.any {
		s.noteAllUsageLocked()
		s.listAllReserved()
	}
	for _, uid := range foreign.uids {
		s.noteUsageLocked(uid)
	}
	for _, seq := range foreign.seqs {
		s.listReserved(seq)
	}
	for _, seq := range t.leases {
		s.listReserved(seq)
	}
	s.leaseBuffer = t.leases
}

// Hint sends a value to a channel of capacity 1, unless one is already waiting there.
func Hint(bell chan<- struct{}) {
	select {
	case bell <- struct{}{}:
	default: // a value is already in the channel
	}
}

// wakeAt records a timer. Only the earliest timer of the transaction is kept.
func (t *Tx) wakeAt(at queue.Millis) {
	if at != 0 && (t.earliestTimer == 0 || at < t.earliestTimer) {
		t.earliestTimer = at
	}
}
