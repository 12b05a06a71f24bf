package engine

import (
	"errors"
	"maps"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/readahead"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/rules"
	"github.com/queuectl/queuectl/store/statistics"
)

// reload fills the cache in memory again from the tables, because another node has changed them. It keeps the
// values that exist only in this node's memory. It fails with errPrewrite if this transaction wrote rows
// before it held the writer lock, because these rows are provisional and must not be read as final ones.
func (t *Tx) reload() error {
	if t.prewrite != nil {
		return errPrewrite
	}
	s, old := t.engine, t.engine.mem
	err := s.loadMemory()
	if err == nil && s.mem.gates.HasGates {
		err = t.computeLeaseNeeds(old.leases)
	}
	if err != nil {
		s.mem = old
		return err
	}
	m := &s.mem
	for seq, l := range m.leases {
		if old := old.leases[seq]; old != nil && old.Job.Fence == l.Job.Fence {
			m.leases[seq] = &rules.Lease{Job: l.Job, Running: l.Running, Needs: l.Needs, Turn: old.Turn}
		}
	}
	m.statistics.LastTidyHour, m.dependencies.LastDecidedUID = old.statistics.LastTidyHour, old.dependencies.LastDecidedUID
	m.lanes.ClosedHere = old.lanes.ClosedHere
	for name, q := range old.lanes.Queues {
		if q.NextTurn > old.lastServedTurn { // a queue whose next turn has passed is treated like a new one
			m.lanes.Queue(name).NextTurn = q.NextTurn
		}
		if reloaded := m.lanes.Queues[name]; reloaded != nil {
			reloaded.LastTurns, reloaded.FixedTurns = q.LastTurns, q.FixedTurns
		}
	}
	s.Publish(func(state *reads.State) {
		maps.DeleteFunc(state.LastTurns, func(name string, _ map[int]int64) bool { return m.lanes.Queues[name] == nil })
	})
	switch {
	case m.rankedByOrder == formatOrder(m.order):
	case old.ranking.state != 0 && old.order == m.order:
		m.ranking = old.ranking
	default:
		m.ranking = rankingProgress{state: queue.Blocked}
	}
	for n, b := range m.batches {
		if known, found := old.batches[n]; found {
			b.lastFrameAt, b.jobsPerQueue = known.lastFrameAt, known.jobsPerQueue
			if !b.isCommitted {
				m.changeUser(b.uid, func(u *user) { u.chosenIDCount += known.chosenIDCount - b.chosenIDCount })
			}
			b.chosenIDCount = known.chosenIDCount
			m.batches[n] = b
		}
	}
	s.minuteStats = statistics.Cache{}
	t.undo, t.usersBefore, t.queueCountsBefore, t.reservationsChanged, t.leaseSeqs, t.changedNodes =
		nil, nil, nil, false, nil, nil
	s.closedHereStale = true
	t.memoryAtStart, s.foreignChanges.anyJob, s.madeJobsReady = *m, true, true
	// Before the reload, the cached position of a lane's first job may have been too early, and other lanes
	// of the user may have been closed in favour of this lane. They may be able to open now, so check the
	// users' limits again.
	for gate := range m.lanes.OverQuota {
		t.rules.MarkGateDirty(gate)
	}
	s.watchForeignTimer(t.startTime, t.startTime) // watch for timers of other nodes that the tables may now contain
	return nil
}

// CatchUp applies the cache deltas of the commits that this node has missed, up to the commit with the given
// number. If deltas are missing or unreadable, it reloads the caches. It also reloads them if hasKnown is false.
// hasKnown reports whether the database is known to contain the last commit that the caches reflect. Then CatchUp
// prepares the transaction for a database with other nodes, and may send the query of the next claim. The backend
// calls it in BeginTx, once it holds the writer lock.
func (t *Tx) CatchUp(commits int64, deltas [][]byte, hasKnown bool) error {
	if err := t.applyMissedDeltas(commits, deltas, hasKnown); err != nil {
		return err
	}
	s := t.engine
	t.rules.MadeJobsReady = s.madeJobsReady
	t.readAhead = &readahead.Jobs{}
	if s.HasOtherNodes() {
		t.delta = &pendingDelta{queues: map[*lanes.Queue]map[int]bool{}}
	}
	return t.prefetchClaim()
}

// applyMissedDeltas applies cache deltas, or reloads the caches; see CatchUp.
func (t *Tx) applyMissedDeltas(commits int64, deltas [][]byte, hasKnown bool) error {
	s, m := t.engine, &t.engine.mem
	if !hasKnown {
		return t.reload()
	}
	if commits == m.commits {
		return nil
	}
	if commits != m.commits+int64(len(deltas)) {
		return t.reload()
	}
	for i, text := range deltas {
		if err := t.applyDelta(commits-int64(len(deltas)-i-1), text); err != nil {
			if !errors.Is(err, errDeltaVersion) {
				s.log.Warn("cannot read a change by another node, so this node reads the queue again; no job is lost; if "+
					"this happens again, run: queuectl doctor --verify", "error", err)
			}
			return t.reload()
		}
		t.undo = nil // the other node's changes are committed, so an error of this transaction must not undo them
	}
	t.undo, t.usersBefore, t.queueCountsBefore, t.reservationsChanged, t.leaseSeqs, t.changedNodes =
		nil, nil, nil, false, nil, nil
	t.memoryAtStart = *m
	s.madeJobsReady = true
	return nil
}
