package engine

import (
	"context"
	"math"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/rules"
)

// LeasedUnitNumbers implements rules.Gates. It returns the numbers of the units of a resource that leased jobs hold.
func (t *Tx) LeasedUnitNumbers(resourceName string) map[int]bool {
	taken := map[int]bool{}
	for seq, l := range t.leases {
		if l.Job.LastLeasingNodeID != t.engine.nodeID {
			continue
		}
		if l = t.Lease(seq); l == nil {
			continue
		}
		queue.ParseResourceUnits(l.Job.HeldUnits, func(resource string, units []int) {
			for _, u := range units {
				taken[u] = taken[u] || resource == resourceName
			}
		})
	}
	return taken
}

// MaxLeasedPerUser implements rules.Settings. It returns how many jobs of one user may be leased; 0 means unlimited.
func (t *Tx) MaxLeasedPerUser() int { return t.maxLeasedPerUser }

// Node implements rules.Settings. It returns this node.
func (t *Tx) ThisNode() *store.Node { return &t.thisNode }

// SetGateRule sets the rule of a shared lock or rate.
func (e *Engine) SetGateRule(ctx context.Context, rule queue.Demand) error {
	return e.RunAndCommit(ctx, PromptClass, func(t *Tx) error { return t.rules.SetFixedGateRule(rule) })
}

// Gates lists locks, rates and resources. It waits for a transaction, because only a transaction may use the
// numbers of used units, which are kept in memory.
func (e *Engine) Gates(ctx context.Context, uid int, afterGate store.GateState) ([]store.GateState, error) {
	return readWriterMemory(ctx, e, func(t *Tx) ([]store.GateState, error) {
		return t.gateTables.ListGates(uid, afterGate, t.ThisNode())
	})
}

// removeUnneededGates removes locks, rates and resources that no job needs any more. more is true if there are more to
// remove.
func (t *Tx) removeUnneededGates() (more bool, err error) {
	return t.gateTables.RemoveUnusedGates(maxChangedJobsPerStep)
}

// recheckDueGates finds rate limits that allow starts again because time has passed, and checks which jobs
// can start now. more is true if there are more such limits.
func (t *Tx) recheckDueGates() (more bool, err error) {
	t.recheckLocallyClosedIfStale()
	if !t.gates.HasGates {
		return false, nil
	}
	list, err := t.TakeDueGateRechecks(maxChangedJobsPerStep, t.startTime < t.lastDueCheckAt)
	t.lastDueCheckAt = t.startTime
	for _, id := range list {
		t.rules.MarkGateDirty(id)
	}
	return len(list) == maxChangedJobsPerStep, err
}

// RecheckClosedLanes starts a recheck of all gates (locks, rates, resources and so on) that keep jobs from starting. It
// is called when any of these gates may have room again. Each call of ApplyDueChanges then checks some of them.
func (t *Tx) RecheckClosedLanes() {
	if t.gates.HasGates {
		t.recheckLocallyClosedLanes()
		t.recheckedUpToGateID = math.MinInt64 + 1
		t.WakeServiceAt(t.startTime)
	}
}

// recheckLocallyClosedIfStale checks again the lanes (lists of jobs) that are closed only on this node, if another
// node's changes may have affected them. It does so at most once per otherNodeTimerGrace, because a recheck of many
// queues takes long.
func (t *Tx) recheckLocallyClosedIfStale() {
	if !t.locallyClosedLanesStale {
		return
	}
	if t.locallyClosedCheckedAt <= t.startTime && t.startTime < t.locallyClosedCheckedAt.Add(otherNodeTimerGrace) {
		t.checkOtherNodeTimerLater(t.startTime)
		return
	}
	t.locallyClosedLanesStale, t.locallyClosedCheckedAt = false, t.startTime
	t.recheckLocallyClosedLanes()
}

// recheckLocallyClosedLanes checks again every limit (such as a resource of this node) that keeps jobs from starting on
// this node but not on others.
func (t *Tx) recheckLocallyClosedLanes() {
	for _, gate := range t.lanes.LocalClosingGateByLaneID {
		t.rules.MarkGateDirty(gate)
	}
}

// continueGateRecheck continues the recheck of gates (locks and other limits) that RecheckClosedLanes started.
// more is true if there are more gates to check.
func (t *Tx) continueGateRecheck() (more bool, err error) {
	for n := 0; t.recheckedUpToGateID != 0; n++ {
		if n == maxChangedJobsPerStep {
			return true, nil
		}
		gate := t.queryInt(
			`SELECT shut FROM lanes INDEXED BY lanes_shut WHERE demands <> '' AND shut <> 0 AND shut > ? ORDER BY shut LIMIT 1`,
			t.recheckedUpToGateID)
		if t.recheckedUpToGateID = gate; gate != 0 {
			t.rules.MarkGateDirty(gate)
		}
	}
	return false, t.statementErr
}

// recomputeLanesAtStart computes which locks and resources the leased jobs hold, and checks again which waiting jobs
// can start. The limits may have been changed while the engine was closed.
func (e *Engine) recomputeLanesAtStart(ctx context.Context) error {
	if !e.cache.gates.HasGates {
		return nil
	}
	return e.RunAndCommit(ctx, UrgentClass, func(t *Tx) error {
		t.RecheckClosedLanes()
		return t.computeLeaseGateNeeds(nil)
	})
}

// computeLeaseGateNeeds computes which gates (locks, resources and so on) the leased jobs hold. For the leases in
// previousLeases, by seq of the job, it reuses the gates that are already known.
func (t *Tx) computeLeaseGateNeeds(previousLeases map[int64]*rules.Lease) error {
	before := t.leaseChanges
	defer func() { t.leaseChanges = before }() // the leases themselves do not change
	for seq, l := range t.leases {
		if len(l.Job.Demands) == 0 {
			continue
		}
		needs := []rules.GateNeed(nil)
		if was := previousLeases[seq]; was != nil && was.Job.Fence == l.Job.Fence {
			needs = was.HeldGateUnits
		} else {
			lane, found, _ := t.storedLane(`WHERE id = ?`, l.Job.LaneID)
			if !found {
				lane, _ = t.FindOrAddLane(&l.Job)
			}
			needs = lane.GateNeeds
		}
		t.PutLease(&rules.Lease{Job: l.Job, AttemptStarted: l.AttemptStarted, HeldGateUnits: needs})
	}
	return t.statementErr
}
