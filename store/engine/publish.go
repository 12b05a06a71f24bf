package engine

import (
	"maps"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/reads"
)

// publish makes the results of the transaction visible to readers, and notifies watchers of changed jobs. It
// is called after the commit.
func (t *Tx) publish(grant *claimResult) {
	s := t.engine
	if next := earlierTime(t.earliestTimer, s.mem.nextTimerAt); next != s.mem.nextTimerAt {
		s.mem.nextTimerAt = next
		queue.TrySend(s.promoteHints, struct{}{})
	}
	for _, f := range t.afterCommit {
		f()
	}
	s.runtimeEstimates.AddMeasurements(t.measurements)
	s.madeJobsReady = false
	foreign := s.foreignChanges
	if s.foreignChanges = (foreignChanges{}); foreign.anyJob {
		defer s.watchers.NotifyAll()
	} else {
		defer s.watchers.Notify(append(t.touchedJobs, foreign.seqs...)...)
	}
	s.Publish(func(state *reads.State) {
		s.publishCounts(state)
		state.Order = s.mem.order
		if foreign.anyJob {
			s.publishUsers(state)
		}
		for uid := range t.usersBefore {
			s.publishUser(state, uid)
		}
		for _, uid := range foreign.uids {
			s.publishUser(state, uid)
		}
		for _, seq := range foreign.seqs {
			s.publishLease(state, seq)
		}
		for _, seq := range t.leaseSeqs {
			s.publishLease(state, seq)
		}
		for _, q := range t.changedTurns {
			if s.mem.lanes.Queues[q.Name] == q { // false if tidyQueues has removed the queue
				state.LastTurns[q.Name] = maps.Clone(q.LastTurns)
			}
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if grant != nil && s.waiter == grant.waiter {
		s.waiter = nil
	}
	if t.interruptedWaiter != nil {
		queue.TrySend(t.interruptedWaiter.retry, struct{}{})
	}
}

// publishCounts makes the counts in the engine's cache visible to readers.
func (e *Engine) publishCounts(state *reads.State) {
	m := &e.mem
	state.LastEvent = m.nextEvent - 1
	state.Counts = store.Counts{States: m.jobCounts, EnqueuedTotal: m.enqueuedTotal, Reranking: m.ranking.state != 0,
		OutputBytes: m.outputBytes, UnderOwnRetention: m.retainedJobs}
}

// publishUsers makes the counts of all users, and all leases of attempts not known to have started, visible
// to readers.
func (e *Engine) publishUsers(state *reads.State) {
	clear(state.Usage)
	for uid := range e.mem.users {
		e.publishUser(state, uid)
	}
	state.Reservations = map[int64]database.Reservation{}
	for seq := range e.mem.leases {
		e.publishLease(state, seq)
	}
}

// publishUser makes the counts of a user visible to readers.
func (e *Engine) publishUser(state *reads.State, uid int) {
	u := e.mem.users[uid]
	if usage := (reads.Usage{Waiting: u.waitingJobs, Bytes: u.totalBytes(),
		OutputBytes: u.outputBytes}); usage != (reads.Usage{}) {
		state.Usage[uid] = usage
	} else {
		delete(state.Usage, uid)
	}
}

// publishLease makes a job's lease visible to readers while its attempt is not known to have started.
func (e *Engine) publishLease(state *reads.State, seq int64) {
	if l := e.mem.leases[seq]; l != nil && !l.Running {
		state.Reservations[seq] = database.Reservation{Fence: l.Job.Fence, Node: l.Job.Node}
	} else {
		delete(state.Reservations, seq)
	}
}

// WakeAt implements rules.Clock. It ensures that Promote is called at the given time or earlier. Of all times
// in a transaction, only the earliest is kept.
func (t *Tx) WakeAt(at queue.Millis) {
	t.earliestTimer = earlierTime(t.earliestTimer, at)
}

// earlierTime returns the earlier of two times. 0 means no time.
func earlierTime(a, b queue.Millis) queue.Millis {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
