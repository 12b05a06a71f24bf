package engine

import (
	"errors"
	"maps"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/rules"
	"github.com/queuectl/queuectl/store/statistics"
)

// reloadCache fills the cache in memory again from the tables, because another node has changed them. It keeps the
// values that exist only in this node's memory. It fails with errPrewriteMismatch if this transaction wrote rows
// before it held the writer lock, because these rows are provisional and must not be read as final ones.
func (t *Tx) reloadCache() error {
	if t.prewrite.wasMade() {
		return errPrewriteMismatch
	}
	s, old := t.engine, *t.databaseCache
	err := s.loadMemory()
	if err == nil && t.gates.HasGates {
		err = t.computeLeaseGateNeeds(old.leases)
	}
	if err != nil {
		*t.databaseCache = old
		return err
	}
	for seq, l := range t.leases {
		if old := old.leases[seq]; old != nil && old.Job.Fence == l.Job.Fence {
			t.leases[seq] = &rules.Lease{Job: l.Job, AttemptStarted: l.AttemptStarted, HeldGateUnits: l.HeldGateUnits,
				UserTurn: old.UserTurn}
		}
	}
	t.statistics.LastRollUpHour, t.dependencies.LastProcessedChangeUID = old.statistics.LastRollUpHour,
		old.dependencies.LastProcessedChangeUID
	t.lanes.LocalClosingGateByLaneID = old.lanes.LocalClosingGateByLaneID
	for name, q := range old.lanes.Queues {
		if q.NextTurn > old.lastServedQueueTurn { // a queue whose next turn has passed is treated like a new one
			t.lanes.FindOrAddQueue(name).NextTurn = q.NextTurn
		}
		if reloaded := t.lanes.Queues[name]; reloaded != nil {
			reloaded.LastTurnByUID, reloaded.LastPermanentTurn = q.LastTurnByUID, q.LastPermanentTurn
		}
	}
	s.UpdatePublishedState(func(state *reads.ReaderState) {
		maps.DeleteFunc(state.LastTurnsByQueue, func(name string,
			_ map[int]int64) bool {
			return t.lanes.Queues[name] == nil
		})
	})
	switch {
	case t.storedRanksOrderText == formatRankOrder(t.order):
	case old.rerankProgress.stateBeingReranked != 0 && old.order == t.order:
		t.rerankProgress = old.rerankProgress
	default:
		t.rerankProgress = rerankingProgress{stateBeingReranked: queue.Blocked}
	}
	for n, b := range t.batches {
		if known, found := old.batches[n]; found {
			b.lastFrameAt, b.jobCountByQueue = known.lastFrameAt, known.jobCountByQueue
			if !b.isCommitted {
				t.databaseCache.changeUserCounts(b.uid,
					func(u *userCounts) { u.userChosenIDCount += known.userChosenIDCount - b.userChosenIDCount })
			}
			b.userChosenIDCount = known.userChosenIDCount
			t.batches[n] = b
		}
	}
	s.minuteStats = statistics.MinuteCache{}
	t.undoFuncs, t.userCountsBefore, t.queueCountsBefore, t.leaseChanges = nil, nil, nil, leaseChanges{}
	t.locallyClosedLanesStale = true
	t.memoryAtStart, s.changesByOtherNodes.anyJobMayHaveChanged, s.otherNodesMayHaveReadiedJobs = *t.databaseCache, true,
		true
	// Before the reload, the cached position of a lane's first job may have been too early, and other lanes of the user
	// may have been closed in favour of this lane. Those other lanes may be able to open now, so check the users' limits
	// again.
	for gate := range t.lanes.OverQuotaLaneCounts {
		t.rules.MarkGateDirty(gate)
	}
	t.checkOtherNodeTimerLater(t.startTime) // watch for timers of other nodes that the tables may now contain
	return nil
}

// CatchUpCache applies the cache deltas of the commits that this node has missed, up to the commit lastCommitNumber. It
// reloads the caches instead if deltas are missing or unreadable, or if containsCachedCommit is false.
// containsCachedCommit reports whether the database is known to contain the last commit that the caches reflect.
// Finally, CatchUpCache prepares the transaction for a database with other nodes, and may send the query of the next
// claim. The backend calls it in BeginTx, once it holds the writer lock.
func (t *Tx) CatchUpCache(lastCommitNumber int64, deltas [][]byte, containsCachedCommit bool) error {
	if err := t.applyMissedDeltas(lastCommitNumber, deltas, containsCachedCommit); err != nil {
		return err
	}
	s := t.engine
	t.rules.JobsMayBeClaimable = s.otherNodesMayHaveReadiedJobs
	if s.HasOtherNodes() {
		t.delta = &pendingDelta{staleUsersByQueue: map[*lanes.Queue]map[int]bool{}}
	}
	return t.prefetchClaim()
}

// applyMissedDeltas applies cache deltas, or reloads the caches; see CatchUpCache.
func (t *Tx) applyMissedDeltas(lastCommitNumber int64, deltas [][]byte, containsCachedCommit bool) error {
	s := t.engine
	if !containsCachedCommit {
		return t.reloadCache()
	}
	if lastCommitNumber == t.commitCount {
		return nil
	}
	if lastCommitNumber != t.commitCount+int64(len(deltas)) {
		return t.reloadCache()
	}
	for i, text := range deltas {
		if err := t.applyDelta(lastCommitNumber-int64(len(deltas)-i-1), text); err != nil {
			if !errors.Is(err, errUnknownDeltaVersion) {
				s.log.Warn("cannot read a change by another node, so this node reads the queue again; no job is lost; if "+
					"this happens again, run: queuectl doctor --verify", "error", err)
			}
			return t.reloadCache()
		}
		t.undoFuncs = nil // the other node's changes are committed, so an error of this transaction must not undo them
	}
	t.undoFuncs, t.userCountsBefore, t.queueCountsBefore, t.leaseChanges = nil, nil, nil, leaseChanges{}
	t.memoryAtStart = *t.databaseCache
	s.otherNodesMayHaveReadiedJobs = true
	return nil
}
