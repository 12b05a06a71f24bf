package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// SetLane implements rules.Lanes. It records the new state of a lane, which holds the waiting jobs of one queue and
// user that need the same locks and other limits.
func (t *Tx) SetLane(l rules.Lane) error {
	if len(l.GateNeeds) > 0 {
		return t.setLaneWithDemands(l)
	}
	t.addLaneToDelta(&l)
	cached := t.lanes.DemandFreeLanes[lanes.DemandFreeKeyOf(&l)]
	setState := func(l *rules.Lane) {
		cached.Head, cached.Priority, cached.ClosedBy = l.Head, l.Priority, l.ClosedBy
		t.lanes.UpdateDemandFreeLane(cached)
	}
	old := *cached
	t.OnRollback(func() { setState(&old) })
	t.emptyLaneCount += records.BoolToInt(l.ClosedBy == rules.Empty) - records.BoolToInt(old.ClosedBy == rules.Empty)
	setState(&l)
	return nil
}

// setLaneWithDemands does the work of SetLane for a lane whose jobs need locks or other limits.
func (t *Tx) setLaneWithDemands(l rules.Lane) error {
	q := t.lanes.FindOrAddQueue(l.Queue)
	known := q.HasOpenLane(&l)
	old, written := t.unwrittenLanes[l.ID]
	if !known && !written { // a cached lane is open, so no lock or other limit closes it
		old.ClosedBy = t.queryInt(`SELECT shut FROM lanes WHERE id = ?`, l.ID)
	}
	t.emptyLaneCount += records.BoolToInt(l.ClosedBy == rules.Empty) - records.BoolToInt(old.ClosedBy == rules.Empty)
	stored := t.closingGateToStore(&l)
	t.lanes.AdjustOverQuotaCount(old.ClosedBy, -1)
	t.lanes.AdjustOverQuotaCount(stored, 1)
	t.OnRollback(func() {
		t.lanes.AdjustOverQuotaCount(stored, -1)
		t.lanes.AdjustOverQuotaCount(old.ClosedBy, 1)
		t.lanes.MarkUserLanesStale(q, l.UID)
	})
	t.addStaleUserToDelta(q, l.UID)
	t.lanes.UpdateLaneWithDemands(q, l)
	if !known || l.ClosedBy != rules.Open {
		t.closedLanesBySearch = nil
	}
	l.ClosedBy = stored
	t.cacheLane(l)
	return t.statementErr
}

// closingGateToStore returns what to store as the reason why a lane (the waiting jobs of one queue and user with the
// same demands) cannot start jobs: the lock or other limit that closes it. If only this node lacks room, other nodes
// may start the jobs. closingGateToStore then returns rules.Open, and records in lanes.LocalClosingGateByLaneID that
// the lane is closed on this node.
func (t *Tx) closingGateToStore(l *rules.Lane) int64 {
	if t.engine.nodeID == 0 {
		return l.ClosedBy
	}
	closedHere := t.lanes.LocalClosingGateByLaneID
	restoreOnRollback(t, closedHere, l.ID)
	if t.isClosedForMissingAccount(l) || slices.ContainsFunc(l.GateNeeds, func(n rules.GateNeed) bool {
		return n.GateID == l.ClosedBy && (n.Kind == queue.GateNode || n.Kind == queue.GateResource)
	}) {
		closedHere[l.ID] = l.ClosedBy
		return rules.Open
	}
	delete(closedHere, l.ID)
	return l.ClosedBy
}

// isClosedForMissingAccount reports whether the jobs of a lane cannot start on this node only because their user has no
// account on this node's machine.
func (m *databaseCache) isClosedForMissingAccount(l *rules.Lane) bool {
	return l.ClosedBy == rules.UserQuotaGateID(l.UID) && m.thisNode.UIDsWithoutAccount[l.UID] &&
		(m.maxLeasedPerUser == 0 || m.users[l.UID].leasedJobs < m.maxLeasedPerUser)
}

// firstJobOfLaneSQL is the end of a query, from FROM on, that finds the first waiting job of a lane. A lane holds the
// waiting jobs of one queue and user that need the same locks and other limits.
const firstJobOfLaneSQL = `FROM jobs INDEXED BY jobs_ready WHERE place = 1 AND lane = lanes.id
	ORDER BY rank, seq LIMIT 1`

// FindOrAddLane implements rules.Lanes. It returns the lane that the job belongs to, and creates it if necessary. A
// lane holds the waiting jobs of one queue and user that need the same locks and other limits.
func (t *Tx) FindOrAddLane(j *rules.Job) (rules.Lane, error) {
	ls := t.lanes
	if len(j.Demands) == 0 {
		l := ls.DemandFreeLanes[lanes.DemandFreeLaneKey{Queue: j.Queue, UID: j.UID}]
		if l == nil {
			l = new(newEmptyLane(j))
			t.insertLane(l, "", "")
			ls.AddDemandFreeLane(l)
			t.OnRollback(func() { ls.RemoveDemandFreeLane(l) })
		}
		t.addLaneToDelta(l) // other nodes may have cached that the lane is empty
		return *l, t.statementErr
	}
	demands := queue.DemandsSignature(j.Demands)
	t.addStaleUserToDelta(ls.FindOrAddQueue(j.Queue), j.UID) // a job is about to enter or leave the lane
	l, found, err := t.storedLane(`WHERE queue = ? AND uid = ? AND demands = ?`, j.Queue, j.UID, demands)
	if err != nil || found {
		if gate, shut := ls.LocalClosingGateByLaneID[l.ID]; shut && l.ClosedBy == rules.Open {
			l.ClosedBy = gate
		}
		return l, err
	}
	l = newEmptyLane(j)
	needs := ""
	for _, d := range j.Demands {
		gate, err := t.EnsureGate(j.UID, d)
		if err != nil {
			return l, err
		}
		n := rules.GateNeed{GateID: gate, Kind: d.Kind, Units: d.UnitsWhileRunning()}
		l.GateNeeds = append(l.GateNeeds, n)
		needs += fmt.Sprintf("%d/%d/%d ", n.GateID, n.Kind, n.Units)
		t.AdjustLaneCount(gate, 1)
	}
	t.insertLane(&l, demands, needs)
	return l, t.statementErr
}

// newEmptyLane returns a new lane without jobs for the queue and user of a job.
func newEmptyLane(j *rules.Job) rules.Lane {
	return rules.Lane{Queue: j.Queue, UID: j.UID, Head: rules.MaxPosition, Priority: rules.UnknownLanePriority,
		ClosedBy: rules.Empty, HeapIndex: -1}
}

// forEachStoredLane passes the lanes that a query returns to the callback, until the callback returns false. queryEnd
// is the part of the query after "FROM lanes".
func (t *Tx) forEachStoredLane(visit func(l rules.Lane) (more bool), queryEnd string, args ...any) {
	t.Query(func(r database.Row) (bool, error) {
		l, err := records.ReadLane(r)
		return err == nil && visit(l), err
	}, `SELECT `+records.LaneColumns+` FROM lanes `+queryEnd, args...)
}

// storedLanes reads the lanes that a query returns; see forEachStoredLane.
func (t *Tx) storedLanes(queryEnd string, args ...any) (lanesFound []rules.Lane) {
	t.forEachStoredLane(func(l rules.Lane) bool {
		lanesFound = append(lanesFound, l)
		return true
	}, queryEnd, args...)
	return lanesFound
}

// storedLane reads the first lane that a query returns; see forEachStoredLane.
func (t *Tx) storedLane(queryEnd string, args ...any) (l rules.Lane, found bool, err error) {
	t.forEachStoredLane(func(first rules.Lane) bool {
		l, found = first, true
		return false
	}, queryEnd, args...)
	return l, found, t.statementErr
}

// adjustLaneCountOfQueue adds n, which may be negative, to the number of lanes of a queue.
func (t *Tx) adjustLaneCountOfQueue(queueName string, delta int) {
	q := t.lanes.FindOrAddQueue(queueName)
	t.addQueueToDelta(q)
	q.LaneCount += delta
	t.OnRollback(func() { q.LaneCount -= delta })
}

// insertLane stores a new, empty lane and sets its id. demands and needs are the texts for the lane's row.
func (t *Tx) insertLane(l *rules.Lane, demandsText, gateNeedsText string) {
	t.emptyLaneCount++
	t.adjustLaneCountOfQueue(l.Queue, 1)
	l.ID = t.queryInt(
		`INSERT INTO lanes (queue, uid, demands, needs, head_rank, head_seq, priority, shut)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING id`,
		l.Queue, l.UID, demandsText, gateNeedsText, l.Head.Rank, l.Head.Seq, l.Priority, l.ClosedBy)
}

// removeEmptyLanes removes up to maxChangedJobsPerStep lanes (lists of waiting jobs) that contain no jobs, if there are
// more than maxEmptyLanes such lanes. more is true if there are more to remove.
func (t *Tx) removeEmptyLanes() (more bool, err error) {
	if int64(len(t.lanes.LocalClosingGateByLaneID)) > t.engine.maxEmptyLanes { // some lanes may no longer exist
		t.forgetLocallyClosedLanes()
	}
	if t.emptyLaneCount <= t.engine.maxEmptyLanes {
		return false, nil
	}
	leased := map[int64]bool{}
	for _, l := range t.leases {
		leased[l.Job.LaneID] = true
	}
	var emptyLanes []*rules.Lane
	for _, l := range t.lanes.DemandFreeLanes {
		if l.ClosedBy == rules.Empty && !leased[l.ID] && len(emptyLanes) < maxChangedJobsPerStep {
			emptyLanes = append(emptyLanes, l)
		}
	}
	for _, l := range t.storedLanes(`INDEXED BY lanes_shut WHERE demands <> '' AND shut <> 0 AND shut = ? LIMIT ?`,
		rules.Empty, maxChangedJobsPerStep+len(leased)) {
		if !leased[l.ID] && len(emptyLanes) < maxChangedJobsPerStep {
			emptyLanes = append(emptyLanes, &l)
		}
	}
	for _, l := range emptyLanes {
		t.removeLane(l)
	}
	return len(emptyLanes) == maxChangedJobsPerStep, t.statementErr
}

// removeLane deletes a lane without jobs.
func (t *Tx) removeLane(l *rules.Lane) {
	t.emptyLaneCount--
	t.adjustLaneCountOfQueue(l.Queue, -1)
	for _, need := range l.GateNeeds {
		t.AdjustLaneCount(need.GateID, -1)
	}
	// A lane whose stored demands were lost through damage looks like the lane for jobs that need no lock or other limit.
	// So check that l itself is in the cache.
	if t.lanes.DemandFreeLanes[lanes.DemandFreeKeyOf(l)] == l {
		t.lanes.RemoveDemandFreeLane(l)
		t.addLaneToDelta(l)
		t.OnRollback(func() { t.lanes.AddDemandFreeLane(l) })
	}
	t.Exec(`DELETE FROM lanes WHERE id = ?`, l.ID)
}

// forgetLocallyClosedLanes forgets which lanes are closed only on this node, because this node lacks room for their
// jobs. All these lanes are then checked again.
func (t *Tx) forgetLocallyClosedLanes() {
	ls := t.lanes
	old := ls.LocalClosingGateByLaneID
	markAllStale := func() {
		for _, q := range ls.Queues {
			ls.MarkQueueLanesStale(q)
		}
	}
	t.OnRollback(func() {
		ls.LocalClosingGateByLaneID = old
		markAllStale()
	})
	ls.LocalClosingGateByLaneID = map[int64]int64{}
	t.closedLanesBySearch = nil
	markAllStale()
	t.rules.JobsMayBeClaimable = true
}

// addLaneQueries adds the statements that read the lanes (lists of waiting jobs). After these statements were executed,
// the caller calls addDemandFreeLanes, which adds the lanes whose jobs need no lock or other limit to memory. Before
// that, the caller must count the leases: if a user has the maximum number of leased jobs, addDemandFreeLanes closes
// the user's lanes.
func (m *databaseCache) addLaneQueries(queries *database.QueryBatch) (addDemandFreeLanes func()) {
	ls := m.lanes
	var plainLanes []rules.Lane
	queries.Add(func(r database.Row) (bool, error) {
		l, err := records.ReadLane(r)
		l.Head, l.Priority = rules.Position{Rank: r.Int64(records.LaneColumnCount),
			Seq: r.Int64(records.LaneColumnCount + 1)}, rules.UnknownLanePriority
		plainLanes = append(plainLanes, l)
		return true, err
	}, `SELECT `+records.LaneColumns+`, (SELECT rank `+firstJobOfLaneSQL+`), (SELECT seq `+firstJobOfLaneSQL+`)
		FROM lanes WHERE demands = ''`)
	queries.AddForEachRow(func(r database.Row) {
		q := ls.FindOrAddQueue(r.Text(0))
		q.LaneCount += int(r.Int64(1))
		if r.Int64(2) > 0 {
			ls.MarkQueueLanesStale(q)
		}
	}, `SELECT queue, count(*), sum(CASE shut WHEN 0 THEN 1 ELSE 0 END) FROM lanes WHERE demands <> '' GROUP BY queue`)
	queries.AddForEachRow(func(r database.Row) {
		if shut, n := r.Int64(0), r.Int64(1); shut == rules.Empty {
			m.emptyLaneCount += n
		} else {
			ls.AdjustOverQuotaCount(shut, int(n))
		}
	}, `SELECT shut, count(*) FROM lanes INDEXED BY lanes_shut WHERE demands <> '' AND shut <> 0 AND shut < 0
		GROUP BY shut`)
	return func() {
		for i := range plainLanes {
			l := &plainLanes[i]
			switch quota := m.maxLeasedPerUser; {
			case l.Head.Seq == 0:
				l.Head, l.ClosedBy = rules.MaxPosition, rules.Empty
				m.emptyLaneCount++
			case quota > 0 && m.users[l.UID].leasedJobs >= quota:
				l.ClosedBy = rules.UserQuotaGateID(l.UID)
			default:
				l.ClosedBy = rules.Open
			}
			ls.AddDemandFreeLane(l)
			ls.FindOrAddQueue(l.Queue).LaneCount++
		}
	}
}

// SetMaxRunningPerUser limits how many jobs of one user may be leased at the same time; 0 means unlimited.
func (e *Engine) SetMaxRunningPerUser(ctx context.Context, maxRunningJobs int) error {
	return e.RunAndCommit(ctx, PromptClass, func(t *Tx) error {
		if maxRunningJobs == t.maxLeasedPerUser {
			return nil
		}
		t.maxLeasedPerUser = maxRunningJobs
		for uid := range t.lanes.DemandFreeLanesByUID {
			t.rules.MarkGateDirty(rules.UserQuotaGateID(uid))
		}
		t.recheckGatesNow()
		return t.statementErr
	})
}

// SetHooks sets which hooks the engine creates for jobs, and when.
func (e *Engine) SetHooks(ctx context.Context, h store.HookSettings) error {
	return e.RunAndCommit(ctx, PromptClass, func(t *Tx) error {
		t.hookSettings = h
		return nil
	})
}

// SetThisNodeProperties sets the labels, resources and unknown users of this node.
func (e *Engine) SetThisNodeProperties(ctx context.Context, node store.Node) error {
	return e.RunAndCommit(ctx, PromptClass, func(t *Tx) error {
		for uid := range t.thisNode.UIDsWithoutAccount {
			t.rules.MarkGateDirty(rules.UserQuotaGateID(uid))
		}
		t.thisNode = node.Clone()
		t.thisNode.ID = t.engine.nodeID
		if t.thisNode.ID != 0 {
			if err := t.engine.sharedDatabase.SaveThisNodeProperties(t, &t.thisNode); err != nil {
				return err
			}
		}
		t.recheckGatesNow()
		return t.statementErr
	})
}

// recheckGatesNow checks again which jobs can start, after a limit may have changed. It does the first step in this
// transaction, and ApplyDueChanges does the later steps.
func (t *Tx) recheckGatesNow() {
	t.RecheckClosedLanes()
	t.continueGateRecheck()
}
