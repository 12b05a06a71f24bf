package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/integrity"
	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/memstore"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
	"github.com/queuectl/queuectl/store/sqlitedb"
	"github.com/queuectl/queuectl/store/storetest"
)

// checkMemoryMatchesTables returns an error if the lanes, queues and counts in memory differ from those in the tables.
func (e *Engine) checkMemoryMatchesTables() error {
	for e.gateRecheckState.DirtyGateCount() > 0 {
		if err := e.RunAndCommit(context.Background(), UrgentClass, func(*Tx) error { return nil }); err != nil {
			return err
		}
	}
	return e.RunAndCommit(context.Background(), UrgentClass, func(t *Tx) error {
		if err := t.rules.OpenLanes(); err != nil { // after a reload, lanes may have to be opened
			return err
		}
		lanes, demands, err := t.readAllLanes()
		if err != nil {
			return err
		}
		return errors.Join(t.checkJobsMatchTheirLanes(lanes, demands), t.checkUsedGateUnits(),
			t.checkCountsMatchTables(lanes), t.checkClosedLanes(lanes), t.checkQueuesMatchLanes(lanes))
	})
}

// readAllLanes returns all lanes (lists of jobs), and the text of each lane's demands (locks and other limits), by id
// of the lane. It takes lanes without demands from memory, and lanes with demands from their table.
func (t *Tx) readAllLanes() (lanesByID map[int64]rules.Lane, demandsByLaneID map[int64]string, err error) {
	lanesByID, demandsByLaneID = map[int64]rules.Lane{}, map[int64]string{}
	err = t.Query(func(r database.Row) (bool, error) {
		l, err := records.ReadLane(r)
		if own := t.lanes.DemandFreeLanes[lanes.DemandFreeKeyOf(&l)]; r.Text(records.LaneColumnCount) == "" &&
			own != nil {
			l = *own
		}
		if gate, here := t.lanes.LocalClosingGateByLaneID[l.ID]; here && l.ClosedBy == rules.Open {
			l.ClosedBy = gate
		}
		lanesByID[l.ID], demandsByLaneID[l.ID] = l, r.Text(records.LaneColumnCount)
		return true, err
	}, `SELECT `+records.LaneColumns+`, demands FROM lanes`)
	return lanesByID, demandsByLaneID, err
}

// checkJobsMatchTheirLanes returns an error if a ready job is not in the lane of its queue, user and demands (locks and
// other limits). It also returns an error if a job ranks before the job that its lane has recorded as the first. It
// ignores leased jobs.
func (t *Tx) checkJobsMatchTheirLanes(lanesByID map[int64]rules.Lane, demandsByLaneID map[int64]string) error {
	var mismatch error
	err := t.Query(func(r database.Row) (bool, error) {
		p, l := rules.Position{Rank: r.Int64(1), Seq: r.Int64(0)}, lanesByID[r.Int64(2)]
		made := records.DecodeDemands(r.BytesView(5))
		switch {
		case t.leases[p.Seq] != nil:
		case l.Queue != r.Text(3) || l.UID != int(r.Int64(4)) || demandsByLaneID[l.ID] != queue.DemandsSignature(made):
			mismatch = fmt.Errorf("job %d of queue %s, user %d, demands %v is in lane %+v", p.Seq, r.Text(3), r.Int64(4), made,
				l)
		case l.ClosedBy == rules.Empty || l.Head.After(p):
			mismatch = fmt.Errorf("the lane %+v does not contain job %d at %v", l, p.Seq, p)
		}
		return true, nil
	}, `SELECT seq, rank, lane, queue, uid, demands FROM jobs INDEXED BY jobs_ready WHERE place = 1`)
	return errors.Join(mismatch, err)
}

// checkUsedGateUnits returns an error if the units in use at a gate (a lock or other limit) differ from the sum
// of the units that leases hold.
func (t *Tx) checkUsedGateUnits() error {
	used := map[int64]int{}
	leased := map[string]int{}
	for _, l := range t.leases {
		leased[l.Job.Queue]++
		for _, d := range l.Job.Demands {
			gate, err := t.EnsureGate(l.Job.UID, d)
			if err != nil {
				return err
			}
			if d.Kind != queue.GateRate || !l.AttemptStarted {
				used[gate] += d.UnitsWhileRunning()
			}
		}
	}
	if !maps.Equal(used, t.gates.UsedUnitsByGate) {
		return fmt.Errorf("leases use the units %v of gates, but the cache has %v", used,
			t.gates.UsedUnitsByGate)
	}
	for name, q := range t.lanes.Queues {
		if q.LeasedJobs != leased[name] {
			return fmt.Errorf("%d jobs of queue %s are leased, and %d are known", leased[name], name, q.LeasedJobs)
		}
	}
	return nil
}

// checkCountsMatchTables returns an error if the counts in memory of lanes, dependencies, users and gates (locks and
// other limits) differ from the tables, or if rows contradict each other.
func (t *Tx) checkCountsMatchTables(lanes map[int64]rules.Lane) error {
	edges, err := t.QueryNumber(`SELECT count(*) FROM edges`)
	ended, err2 := t.QueryNumber(`SELECT count(*) FROM ended`)
	wrong := errors.Join(err, err2)
	if edges > 0 && !t.dependencies.HasAnyEdges || ended != t.dependencies.PendingParentChangeCount {
		wrong = errors.Join(wrong, fmt.Errorf("%d edges and %d ended parents, and %v and %d are known", edges, ended,
			t.dependencies.HasAnyEdges, t.dependencies.PendingParentChangeCount))
	}
	waiting := map[string]int64{}
	wrong = errors.Join(wrong, t.Query(func(r database.Row) (bool, error) {
		waiting[r.Text(0)] = r.Int64(1)
		return true, nil
	}, `SELECT queue, count(*) FROM jobs WHERE state < 5 GROUP BY queue`))
	for name, q := range t.lanes.Queues {
		if q.WaitingJobs != waiting[name] {
			wrong = errors.Join(wrong, fmt.Errorf("%d jobs of queue %s wait, and %d are known", waiting[name], name,
				q.WaitingJobs))
		}
		delete(waiting, name)
	}
	if len(waiting) > 0 {
		wrong = errors.Join(wrong, fmt.Errorf("the cache lacks the queues %v", waiting))
	}
	for _, fault := range integrity.FindWrongQueueCounts(t.Conn) {
		wrong = errors.Join(wrong, errors.New(fault))
	}
	empties, over := int64(0), map[int64]int{}
	for id, l := range lanes {
		if l.ClosedBy == rules.Empty {
			empties++
		} else if _, here := t.lanes.LocalClosingGateByLaneID[id]; l.ClosedBy < 0 && len(l.GateNeeds) > 0 && !here {
			over[l.ClosedBy]++ // lanes that are closed only on this node are not counted
		}
	}
	if empties != t.emptyLaneCount || !maps.Equal(over, t.lanes.OverQuotaLaneCounts) {
		wrong = errors.Join(wrong, fmt.Errorf("%d lanes are empty, %v wait for quotas, and %d and %v are known", empties,
			over, t.emptyLaneCount, t.lanes.OverQuotaLaneCounts))
	}
	users := map[int]userCounts{}
	err = t.Query(func(r database.Row) (bool, error) {
		users[int(r.Int64(0))] = userCounts{UserCounts: database.UserCounts{WaitingJobs: r.Int64(1)}}
		return true, nil
	}, `SELECT uid, count(*) FROM jobs WHERE state < 5 GROUP BY uid`)
	for _, l := range t.leases {
		u := users[l.Job.UID]
		u.leasedJobs++
		users[l.Job.UID] = u
	}
	for uid, u := range t.users {
		if u.WaitingJobs != users[uid].WaitingJobs || u.leasedJobs != users[uid].leasedJobs {
			wrong = errors.Join(wrong, fmt.Errorf("user %d has %+v, but the cache has %+v", uid, users[uid], u))
		}
		delete(users, uid)
	}
	if len(users) > 0 {
		wrong = errors.Join(wrong, fmt.Errorf("the cache lacks the users %v", users))
	}
	rows, err2 := integrity.FindContradictingRows(integrityCheckConn{t.Conn})
	dates, err5 := integrity.FindFutureDates(integrityCheckConn{t.Conn}, t.startTime)
	gates, err3 := integrity.FindWrongGateCounts(t.Conn)
	for _, text := range slices.Concat(rows, dates, gates) {
		wrong = errors.Join(wrong, errors.New(text))
	}
	resources := map[int64]bool{}
	for _, id := range t.gates.ResourceGateIDs {
		resources[id] = true
	}
	err4 := t.Query(func(r database.Row) (bool, error) {
		if !resources[r.Int64(0)] {
			wrong = errors.Join(wrong, fmt.Errorf("the resource %d is not known", r.Int64(0)))
		}
		delete(resources, r.Int64(0))
		return true, nil
	}, `SELECT id FROM gates WHERE kind = ?`, int64(queue.GateResource))
	if len(resources) > 0 {
		wrong = errors.Join(wrong, fmt.Errorf("the resources %v are gone", resources))
	}
	return errors.Join(wrong, err, err2, err3, err4, err5)
}

// integrityCheckConn adapts the queries of the integrity checks, which are written for SQLite, to a server, where each
// node stores its own list of the leases whose attempts are not known to have started.
type integrityCheckConn struct{ database.Conn }

func (v integrityCheckConn) Query(handleRow func(r database.Row) (bool, error), sql string, args ...any) error {
	if _, lite := v.Conn.(*sqlitedb.Conn); !lite {
		sql = strings.ReplaceAll(sql, `(SELECT ' ' || reserved FROM meta)`,
			`(SELECT ' ' || reserved || (SELECT coalesce(string_agg(reserved, ''), '') FROM nodes) FROM meta)`)
	}
	return v.Conn.Query(handleRow, sql, args...)
}

// checkClosedLanes returns an error if a lane is closed although the gate (a lock or other limit) that closed
// it has room for the lane's first job. It checks the best lane in each list of closed lanes. A lane may stay
// closed behind an open lane of the same queue and user that also needs the gate.
func (t *Tx) checkClosedLanes(lanes map[int64]rules.Lane) error {
	needs := func(l rules.Lane) []rules.GateNeed {
		return append([]rules.GateNeed{{GateID: rules.UserQuotaGateID(l.UID), Kind: queue.GateUser, Units: 1}},
			l.GateNeeds...)
	}
	type list struct {
		gate int64
		key  rules.ClosedLaneListKey
	}
	best := map[list]rules.Lane{}
	for _, l := range lanes {
		if l.ClosedBy == rules.Open || l.ClosedBy == rules.Empty {
			continue
		}
		at := list{l.ClosedBy, l.ClosedLaneListKey()}
		if slices.ContainsFunc(l.GateNeeds, func(n rules.GateNeed) bool {
			return n.GateID == l.ClosedBy &&
				n.Kind == queue.GateResource
		}) {
			at.key.UID = 0 // a resource has one list for the lanes of all users
		}
		units := func(l rules.Lane) int {
			i := slices.IndexFunc(needs(l), func(n rules.GateNeed) bool { return n.GateID == at.gate })
			return needs(l)[i].Units
		}
		first, found := best[at]
		// Two lanes may have the same head, the recorded position of the first job, because a head may rank
		// before the actual first job. Then choose the lane that needs more units.
		if !found || first.Head.After(l.Head) || first.Head == l.Head && units(l) > units(first) {
			best[at] = l
		}
	}
	for at, l := range best {
		covered := false
		for _, other := range lanes {
			if other.ClosedBy == rules.Open && other.ClosedLaneListKey() == l.ClosedLaneListKey() && !other.Head.After(l.Head) {
				covered = covered || slices.ContainsFunc(needs(other), func(n rules.GateNeed) bool { return n.GateID == at.gate })
			}
		}
		for _, n := range needs(l) {
			if n.GateID != at.gate || covered {
				continue
			}
			g, err := t.rules.GateRoom(l.UID, n)
			if err != nil {
				return err
			}
			if g.FreeUnits >= n.Units {
				return fmt.Errorf("the lane %+v is closed by gate %d, which has room for %d", l, n.GateID, g.FreeUnits)
			}
		}
	}
	return nil
}

// checkQueuesMatchLanes returns an error if the queues in memory contradict the lanes.
func (t *Tx) checkQueuesMatchLanes(lanes map[int64]rules.Lane) error {
	if err := t.refreshStaleQueues(); err != nil {
		return err
	}
	heads := map[string]rules.Position{}
	for _, l := range lanes {
		if first, found := heads[l.Queue]; l.ClosedBy == rules.Open && (!found || first.After(l.Head)) {
			heads[l.Queue] = l.Head
		}
	}
	ls := t.lanes
	for name, q := range ls.Queues {
		head, open := heads[name]
		if open != (len(q.OpenLanes) > 0 || q.BestLaneWithDemands != nil) || open && head != q.BestHead {
			return fmt.Errorf("queue %s has the head %v, open %t, but the cache has %+v", name, head, open, q)
		}
		if ready := open && q.LeasableJobs > 0; ready != (q.ReadyHeapIndex >= 0) || ready &&
			ls.ReadyQueues[q.ReadyHeapIndex] != q {
			return fmt.Errorf("queue %s has index %d among the ready queues: %+v", name, q.ReadyHeapIndex, q)
		}
		for i, l := range q.OpenLanes {
			if l.HeapIndex != i || l.ClosedBy != rules.Open || i > 0 && q.OpenLanes[(i-1)/2].Head.After(l.Head) {
				return fmt.Errorf("the lane %+v is at the wrong place of the heap of its queue", l)
			}
		}
	}
	for i, q := range ls.ReadyQueues {
		if i > 0 && ls.ReadyQueues[(i-1)/2].BestHead.After(q.BestHead) {
			return fmt.Errorf("queue %s is behind a queue with a worse head", q.Name)
		}
	}
	return nil
}

// doRandomOperation executes a random periodic task or operation.
func (t *Tx) doRandomOperation(rng *rand.Rand) (err error) {
	switch rng.IntN(8) {
	case 0, 1:
		_, _, err = t.rules.Claim(1 + rng.IntN(9))
	case 2:
		if _, err = t.cancelExpiredJobs(); err == nil {
			_, err = t.rules.ResolveChangedDependencies()
		}
	case 3:
		kept := t.engine.maxEmptyLanes
		t.engine.maxEmptyLanes = 0
		_, err = t.removeEmptyLanes()
		t.removeUnneededQueues()
		t.engine.maxEmptyLanes = kept
		if err == nil {
			_, err = t.removeUnneededGates()
		}
	case 4:
		if _, err = t.recheckDueGates(); err == nil {
			err = t.rules.OpenLanes()
		}
	case 5:
		for _, l := range t.leases {
			_, err = t.rules.ReportAndClaim(&store.LeaseReport{Settlements: []store.Settlement{completedSettlement(&l.Job.Job)}})
			break
		}
	case 6:
		var list []rules.Job
		list, err = t.readJobs(5, `jobs WHERE state < 5 ORDER BY seq DESC`)
		for i := range list {
			if err == nil && t.leases[list[i].Seq] == nil {
				err = t.rules.ChangeJob(list[i].Seq, store.JobChange{Verb: []queue.Verb{queue.VerbCancel,
					queue.VerbRemove}[rng.IntN(2)]})
			}
		}
	case 7:
		t.RecheckClosedLanes()
		_, err = t.continueGateRecheck()
	}
	return err
}

// runRandomWalks compares engines with the model of the package storetest in the given number of random walks. A walk
// is a sequence of random operations. open returns a function that opens an engine, each time on the same database.
func runRandomWalks(t *testing.T, walkCount int, open func(t *testing.T) func(queue.RankPolicy) (store.Store, *Engine),
	checks ...func(*Engine) error) {
	storetest.RunComparisonWalks(t, walkCount, 3000, func(t *testing.T, o queue.RankPolicy) (storetest.EngineUnderTest,
		store.Store, func(time.Duration)) {
		at := open(t)
		var now atomic.Int64
		now.Store(time.Now().UnixMilli())
		clock := func() queue.UnixMillis { return queue.UnixMillis(now.Load()) }
		order := o
		var s *Engine
		reopen := func() (made store.Store) {
			if s != nil {
				order = s.RankOrder()
				s.Close()
			}
			made, s = at(order)
			s.clock = clock
			s.gateRecheckState.MaxNonClaimSteps = 40 * rules.MaxLaneStepsPerTx // a high limit, because the model has none
			// low, so that lanes, gates and queues without jobs are often removed
			s.maxEmptyLanes = 20
			return made
		}
		first := reopen()
		t.Cleanup(func() { s.Close() })
		undo := func(operationCount int, rng *rand.Rand) {
			s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
				for range operationCount {
					if err := tx.doRandomOperation(rng); err != nil {
						t.Error("in an undone transaction:", err)
					}
				}
				return errors.New("undone")
			})
		}
		return storetest.EngineUnderTest{Store: first, Reopen: reopen, RollBackRandomOperations: undo,
				CheckCaches: func() error {
					wrong := s.checkMemoryMatchesTables()
					for _, check := range checks {
						wrong = errors.Join(wrong, check(s))
					}
					return wrong
				}}, memstore.NewWithClock(o, clock),
			func(d time.Duration) { now.Add(d.Milliseconds()) }
	})
}
