package engine

import (
	"maps"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/reads"
)

// publishCommittedState makes the results of the transaction visible to readers, and notifies watchers of changed jobs.
// It is called after the commit.
func (t *Tx) publishCommittedState() {
	s := t.engine
	if next := earlierTime(t.earliestTimerAt, t.nextTimerAt); next != t.nextTimerAt {
		t.nextTimerAt = next
		queue.TrySend(s.dueChangeHints, struct{}{})
	}
	for _, f := range t.afterCommitFuncs {
		f()
	}
	s.runtimeEstimates.AddMeasurements(t.attemptMeasurements)
	s.otherNodesMayHaveReadiedJobs = false
	foreign := s.changesByOtherNodes
	if s.changesByOtherNodes = (changesByOtherNodes{}); foreign.anyJobMayHaveChanged {
		defer s.jobWatches.NotifyAllWatches()
	} else {
		defer s.jobWatches.NotifyOfChangedJobs(append(t.changedJobSeqs, foreign.jobSeqs...)...)
	}
	s.UpdatePublishedState(func(state *reads.ReaderState) {
		t.publishCounts(state)
		state.RankOrder = t.order
		if foreign.anyJobMayHaveChanged {
			t.publishUsers(state)
		}
		for uid := range t.userCountsBefore {
			t.publishUser(state, uid)
		}
		for _, uid := range foreign.userUIDs {
			t.publishUser(state, uid)
		}
		for _, seq := range foreign.jobSeqs {
			t.publishLease(state, seq)
		}
		for _, seq := range t.changedLeaseJobSeqs {
			t.publishLease(state, seq)
		}
		for _, q := range t.queuesWithChangedTurns {
			if t.lanes.Queues[q.Name] == q { // false if removeUnneededQueues has removed the queue
				state.LastTurnsByQueue[q.Name] = maps.Clone(q.LastTurnByUID)
			}
		}
	})
}

// publishCounts makes the counts in the engine's cache visible to readers.
func (m *databaseCache) publishCounts(state *reads.ReaderState) {
	state.LastEventNumber = m.NextEventNumber - 1
	state.Counts = m.counts()
}

// counts returns the counts of all jobs.
func (m *databaseCache) counts() store.Counts {
	return store.Counts{JobsByState: m.JobCountByState, JobsEverEnqueued: m.EnqueuedTotal,
		IsRerankUnfinished: m.rerankProgress.stateBeingReranked != 0,
		OutputBytes:        m.OutputBytes, JobsUnderQueueRetention: m.ownRetentionJobCount}
}

// publishUsers makes the counts of all users, and all leases of attempts not known to have started, visible
// to readers.
func (m *databaseCache) publishUsers(state *reads.ReaderState) {
	clear(state.UsageByUID)
	for uid := range m.users {
		m.publishUser(state, uid)
	}
	state.ReservationsBySeq = map[int64]database.LeaseReservation{}
	for seq := range m.leases {
		m.publishLease(state, seq)
	}
}

// publishUser makes the counts of a user visible to readers.
func (m *databaseCache) publishUser(state *reads.ReaderState, uid int) {
	u := m.users[uid]
	if usage := (reads.UserUsage{WaitingJobs: u.WaitingJobs, UsedBytes: u.totalBytes(),
		OutputBytes: u.OutputBytes}); usage != (reads.UserUsage{}) {
		state.UsageByUID[uid] = usage
	} else {
		delete(state.UsageByUID, uid)
	}
}

// publishLease makes a job's lease visible to readers while its attempt is not known to have started.
func (m *databaseCache) publishLease(state *reads.ReaderState, jobSeq int64) {
	if l := m.leases[jobSeq]; l != nil && !l.AttemptStarted {
		state.ReservationsBySeq[jobSeq] = database.LeaseReservation{Fence: l.Job.Fence, NodeID: l.Job.LastLeasingNodeID}
	} else {
		delete(state.ReservationsBySeq, jobSeq)
	}
}

// WakeServiceAt implements rules.Clock. It ensures that ApplyDueChanges is called at the given time or earlier.
// Of all times in a transaction, only the earliest is kept.
func (t *Tx) WakeServiceAt(at queue.UnixMillis) {
	t.earliestTimerAt = earlierTime(t.earliestTimerAt, at)
}

// earlierTime returns the earlier of two times. 0 means no time.
func earlierTime(a, b queue.UnixMillis) queue.UnixMillis {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
